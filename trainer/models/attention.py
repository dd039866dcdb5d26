"""Causal self-attention with grouped keys and rotary positions.

Shapes: B sequences, S tokens, D model width, H query heads, K key heads, W head width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.documents import Mask, attend_within_documents, document_mask
from trainyard.training.architectures import Architecture, RopeScaling


class Positions(nn.Module):
    """The tokens of a sequence that this process handles, with their rotary angles.

    The rotary position embedding is defined in Su et al., RoFormer, 2021. All tensors are buffers
    that are not in the state dict. A model built on the meta device must call `reset` once it has
    memory.
    """

    attended: Tensor
    """Indices of the tokens for which this process computes queries, keys and values, int64."""
    cos: Tensor
    sin: Tensor
    stream: Tensor
    queries: Tensor

    def __init__(
        self, head_dim: int, seq_len: int, *, theta: float, scaling: RopeScaling | None = None
    ) -> None:
        super().__init__()
        self.head_dim, self.seq_len = head_dim, seq_len
        self._frequencies_P = frequencies(head_dim, theta, scaling)
        tokens_S = torch.arange(seq_len, device="cpu")
        self.take(attended_S=tokens_S, stream_S=tokens_S)

    def take(
        self, *, attended_S: Tensor, stream_S: Tensor, queries_S: Tensor | None = None
    ) -> None:
        """Select tokens of each sequence by their indices, which are int64 on the host.

        Args:
            attended_S: tokens for which this process computes queries, keys and values.
            stream_S: tokens in the residual stream of this process.
            queries_S: tokens whose queries the attention of this process uses; `attended_S` when
                absent.
        """
        self.attended, self._stream_S = attended_S, stream_S
        self._queries_S = attended_S if queries_S is None else queries_S
        angles = attended_S.numel(), self.head_dim
        self.register_buffer("cos", torch.empty(angles), persistent=False)
        self.register_buffer("sin", torch.empty(angles), persistent=False)
        self.register_buffer("stream", torch.empty_like(stream_S), persistent=False)
        self.register_buffer("queries", torch.empty_like(self._queries_S), persistent=False)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Fill the buffers; float64 angles come from the host, so all devices get equal ones."""
        if self.cos.is_meta:
            return
        angles = torch.outer(self.attended.double(), self._frequencies_P)
        cos, sin = angles.cos(), angles.sin()
        self.cos.copy_(torch.cat((cos, cos), dim=-1))
        self.sin.copy_(torch.cat((-sin, sin), dim=-1))
        self.stream.copy_(self._stream_S)
        self.queries.copy_(self._queries_S)

    def forward(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return cosines [S, W], sines [S, W] and stream indices [S] for an input of S tokens.

        The input is either token ids (the attended tokens) or the residual stream. An input with
        fewer tokens than `seq_len` is the start of a sequence, as in inference.

        Raises:
            ValueError: `tokens` exceeds `seq_len`.
        """
        if tokens in (self.cos.shape[0], self.stream.shape[0]):
            return self.cos, self.sin, self.stream
        if tokens > self.seq_len:
            raise ValueError(f"{tokens} tokens are more than the model's seq_len={self.seq_len}")
        assert self.stream.shape[0] == self.seq_len, "ranks share only sequences of seq_len tokens"
        return self.cos[:tokens], self.sin[:tokens], self.stream[:tokens]

    def document_mask(self, segments_BS: Tensor) -> Mask:
        """Return the document mask for whole sequences, which all layers share.

        `segments_BS` is the document index of each token in the whole sequence, int32.
        """
        return document_mask(segments_BS, self.queries[: segments_BS.shape[1]])


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """Return each feature pair's rotation per token, float64 [W / 2], in rad.

    `scaling` is the scaling of Llama 3.1: frequencies with few turns within the original context
    are divided by its factor, frequencies with many turns stay, and frequencies in between are
    interpolated linearly.
    """
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu")
    plain = theta ** (-pairs / head_dim)
    if scaling is None:
        return plain
    turns = scaling.original_context * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / scaling.factor)


def rotate(x_BHSW: Tensor, cos_SW: Tensor, sin_SW: Tensor) -> Tensor:
    """Rotate each pair of features (i, i + W/2) by the angle of its token.

    The features of a pair are half a head apart, as in published Hugging Face weights; the first
    half of `sin_SW` has the minus sign of the rotation. The product is computed in float32, the
    dtype of the angles, and rounded to the dtype of `x_BHSW`.
    """
    swapped_BHSW = torch.roll(x_BHSW, x_BHSW.shape[-1] // 2, dims=-1)
    return (x_BHSW * cos_SW + swapped_BHSW * sin_SW).type_as(x_BHSW)


class CausalAttention(nn.Module):
    """Causal scaled dot-product attention.

    The module has no weights, so context parallelism can replace it.
    """

    def forward(
        self, q_BHSW: Tensor, k_BKSW: Tensor, v_BKSW: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """Return the attention output in the shape of the queries; K must divide H.

        With a `mask` (`Positions.document_mask`), tokens attend only to their own document.
        """
        if mask is not None:
            return attend_within_documents(q_BHSW, k_BKSW, v_BKSW, mask)
        grouped = q_BHSW.shape[1] != k_BKSW.shape[1]
        return F.scaled_dot_product_attention(
            q_BHSW, k_BKSW, v_BKSW, is_causal=True, enable_gqa=grouped
        )


class Attention(nn.Module):
    """Attention, with projections to queries, keys and values and an output projection."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.head_dim = arch.head_dim
        self.wq = nn.Linear(arch.dim, arch.n_heads * arch.head_dim, bias=False)
        self.wk = nn.Linear(arch.dim, arch.n_kv_heads * arch.head_dim, bias=False)
        self.wv = nn.Linear(arch.dim, arch.n_kv_heads * arch.head_dim, bias=False)
        self.wo = nn.Linear(arch.n_heads * arch.head_dim, arch.dim, bias=False)
        self.attend = CausalAttention()

    def forward(
        self, x_BSD: Tensor, cos_SW: Tensor, sin_SW: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """Return the attention's contribution to the residual stream, in the shape of `x_BSD`."""
        q_BHSW, k_BKSW, v_BKSW = self.project(x_BSD)
        q_BHSW, k_BKSW = rotate(q_BHSW, cos_SW, sin_SW), rotate(k_BKSW, cos_SW, sin_SW)
        mixed_BHSW = self.attend(q_BHSW, k_BKSW, v_BKSW, mask)
        return self.wo(mixed_BHSW.transpose(1, 2).flatten(2))

    def project(self, x_BSD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, H, S, W], and keys and values [B, K, S, W], before the rotation."""
        return self._heads(self.wq(x_BSD)), self._heads(self.wk(x_BSD)), self._heads(self.wv(x_BSD))

    def _heads(self, x: Tensor) -> Tensor:
        # -1 heads, because under TP the projection returns only this rank's heads.
        return x.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2)
