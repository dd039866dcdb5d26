"""Two Triton kernels: the loss of a chunk of logits, and its gradient, which replaces the logits.

The first kernel reads each logit once, for the log-sum-exp. The second kernel reads each logit
again and overwrites it with its gradient. Both kernels compute in float32. `trainer.models.head`
has the plain version, whose results differ only in the order of sums.

Shapes: C tokens, R rows of the vocabulary on this rank.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Number of logits of a token that a program processes at a time."""
WARPS = 8


def sums_and_label_logits(
    logits_CR: Tensor, labels_C: Tensor, first_row: int
) -> tuple[Tensor, Tensor]:
    """Return each token's log-sum-exp over its logits, and its label's logit, both float32 [C].

    A label outside of the rows has the logit minus infinity. So the loss is infinite if no rank has
    the label's row.

    Args:
        logits_CR: logits; each row must be contiguous.
        labels_C: token ids, int64.
        first_row: token id of the first row.
    """
    assert logits_CR.stride(1) == 1, "the kernel reads a row as it lies in memory"
    tokens, rows = logits_CR.shape
    log_sums_C = torch.empty(tokens, dtype=torch.float32, device=logits_CR.device)
    label_logits_C = torch.empty_like(log_sums_C)
    _sums[(tokens,)](
        logits_CR,
        labels_C.contiguous(),
        log_sums_C,
        label_logits_C,
        logits_CR.stride(0),
        first_row,
        ROWS=rows,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return log_sums_C, label_logits_C


def replace_by_gradient(
    logits_CR: Tensor, labels_C: Tensor, *, log_sums_C: Tensor, first_row: int, no_label: int
) -> None:
    """Replace the logits by the gradient of the summed loss: probability minus one-hot.

    Args:
        logits_CR: logits, replaced by their gradient; each row must be contiguous.
        labels_C: token ids, int64; a token with the label `no_label` gets the gradient 0.
        log_sums_C: log-sum-exp of each token's logits over the *whole* vocabulary, float32.
        first_row: token id of the first row.
        no_label: label of tokens that the loss ignores.
    """
    assert logits_CR.stride(1) == 1, "the kernel writes a row as it lies in memory"
    tokens, rows = logits_CR.shape
    _gradient[(tokens, triton.cdiv(rows, BLOCK))](
        logits_CR,
        labels_C.contiguous(),
        log_sums_C,
        logits_CR.stride(0),
        first_row,
        ROWS=rows,
        NO_LABEL=no_label,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _sums(  # type: ignore[no-untyped-def]
    logits,
    labels,
    log_sums,
    label_logits,
    stride,
    first_row,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # int64, because the logits of a token may start beyond 2^31 elements.
    token = tl.program_id(0).to(tl.int64)
    row = logits + token * stride
    columns = tl.arange(0, BLOCK)
    # Each of the BLOCK lanes keeps its own maximum and sum, so that one reduction at the end
    # suffices.
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, ROWS, BLOCK):
        inside = start + columns < ROWS
        x = tl.load(row + start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(most, x)
        # A lane without a finite logit has nothing to scale, and -inf minus -inf would be NaN.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(most - base) + tl.exp(x - base)
        most = higher
    highest = tl.max(most, 0)
    total = tl.sum(total * tl.exp(most - highest), 0)
    tl.store(log_sums + token, highest + tl.log(total))
    place = tl.load(labels + token) - first_row
    here = (place >= 0) & (place < ROWS)
    logit = tl.load(row + place, mask=here, other=float("-inf")).to(tl.float32)
    tl.store(label_logits + token, logit)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _gradient(  # type: ignore[no-untyped-def]
    logits,
    labels,
    log_sums,
    stride,
    first_row,
    ROWS: tl.constexpr,
    NO_LABEL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < ROWS
    places = logits + token * stride + columns
    label = tl.load(labels + token)
    log_sum = tl.load(log_sums + token)
    x = tl.load(places, mask=inside, other=float("-inf")).to(tl.float32)
    gradient = tl.exp(x - log_sum) - tl.where(columns == label - first_row, 1.0, 0.0)
    gradient = tl.where(label == NO_LABEL, 0.0, gradient)
    tl.store(places, gradient.to(logits.dtype.element_ty), mask=inside)
