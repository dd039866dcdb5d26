"""Model FLOPs of training, without overhead of the hardware."""

from __future__ import annotations

from trainyard.training.architectures import Architecture


def matmul_parameters(architecture: Architecture) -> int:
    """Return the number of weights in matrix products: blocks and head, without norms.

    An embedding counts only if it is tied, because a tied embedding is also the head.
    """
    a = architecture
    if a.counted is not None:
        return a.counted.active + a.vocab_size * a.dim
    return a.n_layers * matmul_parameters_of_a_block(a) + a.vocab_size * a.dim


def matmul_parameters_of_a_block(architecture: Architecture) -> int:
    """Return the number of weights that multiply a token in one block; the mean of all blocks."""
    a = architecture
    if a.counted is not None:
        return a.counted.active // a.n_layers
    attention = 2 * a.dim * (a.attention_dim + a.n_kv_heads * a.head_dim)
    return attention + 3 * a.dim * a.ffn_dim


def attention_flops_per_token(architecture: Architecture, seq_len: int) -> int:
    """Return the forward FLOPs of attention for one token, over all blocks.

    A key costs 2 x width for the score, and a value 2 x width for the sum. A causal model attends
    to seq_len / 2 keys on average; with a window of w tokens, to w - w^2 / (2 seq_len).
    """
    a = architecture
    full, sliding, window = a.n_layers * a.attention_dim, 0, None
    if a.counted is not None:
        full, sliding, window = a.counted.attention_width, a.counted.sliding_width, a.counted.window
    w = min(window or seq_len, seq_len)
    return 2 * full * seq_len + 4 * sliding * w - 2 * sliding * w * w // seq_len


def training_flops_per_token(architecture: Architecture, seq_len: int) -> int:
    """Return the FLOPs of forward and backward for one token in a sequence of `seq_len` tokens.

    The result is 6 per weight in a matrix product (2 forward, 4 backward), plus 6 x layers x
    (heads x head width) x seq_len for attention. PaLM (Chowdhery et al. 2022, appendix B) counts
    12 for attention, because it includes every pair of tokens; a causal model only attends to
    half of the pairs. Norms, rotary positions, softmax, the loss, the optimizer and recomputation
    do not count.
    """
    attention = 3 * attention_flops_per_token(architecture, seq_len)
    return 6 * matmul_parameters(architecture) + attention
