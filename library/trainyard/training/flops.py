"""Model FLOPs of training, without overhead of the hardware."""

from __future__ import annotations

from trainyard.training.architectures import Architecture


def matmul_parameters(architecture: Architecture) -> int:
    """Return the number of weights in matrix products: blocks and head, without norms.

    An embedding counts only if it is tied, because a tied embedding is also the head.
    """
    a = architecture
    return a.n_layers * matmul_parameters_of_a_block(a) + a.vocab_size * a.dim


def matmul_parameters_of_a_block(architecture: Architecture) -> int:
    """Return the number of weights in one block: projections of attention and feed-forward."""
    a = architecture
    attention = 2 * a.dim * (a.attention_dim + a.n_kv_heads * a.head_dim)
    return attention + 3 * a.dim * a.ffn_dim


def training_flops_per_token(architecture: Architecture, seq_len: int) -> int:
    """Return the FLOPs of forward and backward for one token in a sequence of `seq_len` tokens.

    The result is 6 per weight in a matrix product (2 forward, 4 backward), plus 6 x layers x
    (heads x head width) x seq_len for attention. PaLM (Chowdhery et al. 2022, appendix B) counts
    12 for attention, because it includes every pair of tokens; a causal model only attends to
    half of the pairs. Norms, rotary positions, softmax, the loss, the optimizer and recomputation
    do not count.
    """
    attention = 6 * architecture.n_layers * architecture.attention_dim * seq_len
    return 6 * matmul_parameters(architecture) + attention
