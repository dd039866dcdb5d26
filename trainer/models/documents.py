"""Document masks, which restrict attention to the documents of a packed sequence.

On a CPU the mask is a tensor of booleans. On other devices it is a `BlockMask` for flex attention,
which lists the blocks of 128 x 128 scores to compute; the kernel masks single scores, so no S x S
tensor exists.

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
"""Number of queries, and of keys, in a block of scores; the default of flex attention's kernels."""


def document_mask(segments_BS: Tensor, queries_Q: Tensor) -> Mask:
    """Return the mask of scores: a token attends to its own document up to itself.

    Args:
        segments_BS: document index of each token in the whole sequence, int32.
        queries_Q: indices of the queries in the sequence, int64, on the same device.
    """
    if segments_BS.device.type == "cpu":
        return dense_mask(segments_BS, queries_Q)
    return block_mask(segments_BS, queries_Q)


def attend_within_documents(q_BHQW: Tensor, k_BKSW: Tensor, v_BKSW: Tensor, mask: Mask) -> Tensor:
    """Return the attention output under the mask, in the shape of the queries; K must divide H."""
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
    """Return the mask for flex attention; the host does not wait for the device.

    A block is needed if the ranges of its indices and documents allow a query to attend to a key.
    The ranges are conservative: a superfluous block costs time but changes no result, because the
    kernel checks every score. A block of 128 x 128 scores is full if all its queries and keys are
    in one document and no key follows a query; the scores of a full block are not checked.
    """
    queries, keys = queries_Q.shape[0], segments_BS.shape[1]
    query_segments_BQ = segments_BS[:, queries_Q]
    keys_S = torch.arange(keys, device=segments_BS.device)

    def counts(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
        return (queries_Q[q] >= k) & (query_segments_BQ[b, q] == segments_BS[b, k])

    min_query, max_query = (x[:, None] for x in _ranges(queries_Q))
    min_key, max_key = _ranges(keys_S)
    min_q_doc, max_q_doc = (x[..., :, None] for x in _ranges(query_segments_BQ))
    min_k_doc, max_k_doc = (x[..., None, :] for x in _ranges(segments_BS))
    needed = (max_query >= min_key) & (min_q_doc <= max_k_doc) & (min_k_doc <= max_q_doc)
    full = (min_query >= max_key) & (min_q_doc == max_k_doc) & (max_q_doc == min_k_doc)
    # The kernels read past the end of a partial last block unless they check each score, so such a
    # block never counts as full.
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
    """Return minimum and maximum of each block in the last dimension."""
    size = values.shape[-1]
    blocks = -(-size // BLOCK)
    # The last block is padded with its last value, which changes neither minimum nor maximum.
    inside = torch.arange(blocks * BLOCK, device=values.device).clamp_max_(size - 1)
    return values[..., inside].unflatten(-1, (blocks, BLOCK)).aminmax(dim=-1)


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of set blocks in each row, and the row's block indices, set ones first.

    Both are int32, as flex attention requires.
    """
    listed = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), listed.int()


@cache
def _compiled_flex_attention() -> Callable[..., Tensor]:
    # Compiled, because uncompiled flex attention materializes all scores, which the block mask
    # should avoid.
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=False)
    return compiled
