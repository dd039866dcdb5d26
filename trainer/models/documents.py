"""Attention that keeps the documents of a packed sequence apart.

On a CPU the mask is a tensor of booleans, which is simple and exact. Elsewhere it is a `BlockMask`
of flex attention: what is kept there is whether blocks of 128 x 128 scores are needed, and single
scores are masked inside the kernel, so that no tensor of S x S exists.

Shapes: B sequences, S tokens of a sequence, Q queries, H query heads, K key heads, W head width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

Mask = Tensor | BlockMask

BLOCK = 128
"""Queries and keys of one block of scores; what flex attention's kernels are tuned for."""


def document_mask(segments_BS: Tensor, queries_Q: Tensor) -> Mask:
    """Return which scores count: a token sees those of its own document up to itself.

    Args:
        segments_BS: document of each token of the whole sequence, int32.
        queries_Q: places in the sequence of the tokens that ask, int64, on the same device.
    """
    if segments_BS.device.type == "cpu":
        return dense_mask(segments_BS, queries_Q)
    return block_mask(segments_BS, queries_Q)


def attend_within_documents(q_BHQW: Tensor, k_BKSW: Tensor, v_BKSW: Tensor, mask: Mask) -> Tensor:
    """Return the values mixed by the scores that count, shaped as the queries; K divides H."""
    grouped = q_BHQW.shape[1] != k_BKSW.shape[1]
    if isinstance(mask, BlockMask):
        mixed_BHQW: Tensor = _compiled_flex_attention()(
            q_BHQW, k_BKSW, v_BKSW, block_mask=mask, enable_gqa=grouped
        )
        return mixed_BHQW
    return F.scaled_dot_product_attention(
        q_BHQW, k_BKSW, v_BKSW, attn_mask=mask, enable_gqa=grouped
    )


def dense_mask(segments_BS: Tensor, queries_Q: Tensor) -> Tensor:
    """Return the mask as booleans, [B, 1, Q, S]."""
    keys_S = torch.arange(segments_BS.shape[1], device=segments_BS.device)
    same_BQS = segments_BS[:, queries_Q, None] == segments_BS[:, None, :]
    return (same_BQS & (queries_Q[:, None] >= keys_S))[:, None]


def block_mask(segments_BS: Tensor, queries_Q: Tensor) -> BlockMask:
    """Return the mask for flex attention; the host waits for no device.

    A block counts if some query of it may see some key of it, by the range of places and of
    documents in both: a block too many costs time, but every score is checked again. It counts in
    full, and its scores are not checked, if all queries and keys are of one document and in order.
    """
    queries, keys = queries_Q.shape[0], segments_BS.shape[1]
    asking_BQ = segments_BS[:, queries_Q]
    keys_S = torch.arange(keys, device=segments_BS.device)

    def counts(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
        return (queries_Q[q] >= k) & (asking_BQ[b, q] == segments_BS[b, k])

    first_place, last_place = (x[:, None] for x in _ranges(queries_Q))
    first_key, last_key = _ranges(keys_S)
    first_asking, last_asking = (x[..., :, None] for x in _ranges(asking_BQ))
    first_asked, last_asked = (x[..., None, :] for x in _ranges(segments_BS))
    needed = (last_place >= first_key) & (first_asking <= last_asked) & (first_asked <= last_asking)
    full = (first_place >= last_key) & (first_asking == last_asked) & (last_asking == first_asked)
    # The kernels read past the end of what is no whole block, unless they check each score.
    full[..., queries // BLOCK :, :] = False
    full[..., keys // BLOCK :] = False
    return BlockMask.from_kv_blocks(
        *_listed((needed & ~full)[:, None]),
        *_listed(full[:, None]),
        BLOCK_SIZE=BLOCK,
        mask_mod=counts,
        seq_lengths=(queries, keys),
    )


def _ranges(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest value of each block of the last dimension."""
    size = values.shape[-1]
    blocks = -(-size // BLOCK)
    # The last block is filled up with its last value, which changes neither.
    inside = torch.arange(blocks * BLOCK, device=values.device).clamp_max_(size - 1)
    return values[..., inside].unflatten(-1, (blocks, BLOCK)).aminmax(dim=-1)


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks are set in each row, and all blocks of it, those that are set first.

    It is how flex attention lists blocks, int32.
    """
    listed = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), listed.int()


@cache
def _compiled_flex_attention() -> Callable[..., Tensor]:
    # Not compiled, it computes all scores and masks them.
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=False)
    return compiled
