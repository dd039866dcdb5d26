"""The head: logits over the vocabulary, or their loss without materializing all logits.

On a GPU, two kernels compute the loss of a chunk of logits and its gradient
(`trainer.kernels.fused_loss`).

Shapes: B sequences, S tokens, T = B x S tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainer.data.batches import NO_LABEL
from trainyard.training.architectures import Architecture
from trainyard.training.logit_chunks import tokens_per_chunk


class Head(nn.Module):
    """Projection to the vocabulary; with tied embeddings it uses the weight of the embedding."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.weight = (
            None if arch.tied_embeddings else nn.Parameter(torch.empty(arch.vocab_size, arch.dim))
        )
        self.token_loss = TokenLoss()

    def forward(
        self, x_BSD: Tensor, labels_BS: Tensor | None = None, tied_weight_VD: Tensor | None = None
    ) -> Tensor:
        """Return logits [B, S, V]; with labels, return the summed loss (see `TokenLoss`)."""
        weight_VD = self.weight if tied_weight_VD is None else tied_weight_VD
        assert weight_VD is not None, "a tied head needs the embedding's weight as an argument"
        if labels_BS is None:
            return self.token_loss.logits(x_BSD, weight_VD)
        loss: Tensor = self.token_loss(x_BSD, weight_VD, labels_BS)
        return loss


class TokenLoss(nn.Module):
    """The summed cross entropy of all tokens, a float32 scalar in nats.

    Labels of -100 do not count. The caller divides by the number of tokens in the *global* batch,
    so loss and gradients do not depend on the partition of the batch.

    This is a module without weights, so that tensor parallelism can replace it. A subclass that
    holds a part of the weight's rows sets `first_row`, and overrides `log_probs` and
    `sums_and_logits`.
    """

    first_row = 0
    """Token id of the weight's first row."""
    backward_runs_once = True
    """Whether the backward pass runs once. False under a schedule that runs backward separately for
    inputs and for weights. Then the gradients from forward are not scaled in place, but into new
    tensors.
    """

    def forward(self, x_BSD: Tensor, weight_VD: Tensor, labels_BS: Tensor) -> Tensor:
        """Return the loss of the logits `x_BSD @ weight_VD.T`, computed in chunks of tokens."""
        arguments = x_BSD.flatten(0, 1), weight_VD, labels_BS.flatten()
        if torch.is_grad_enabled():
            loss: Tensor = _ChunkedLoss.apply(self, *arguments)  # type: ignore[no-untyped-call]
            return loss
        return self.loss_and_gradients(*arguments, gradients=False)[0]

    def logits(self, x_BSD: Tensor, weight_VD: Tensor) -> Tensor:
        """Return each token's logits over the whole vocabulary, [B, S, V]."""
        return F.linear(x_BSD, weight_VD)

    def log_probs(self, logits_CV: Tensor, labels_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities [C, V] for the weight's rows, and the loss of a chunk.

        `logits_CV` is float32 and may be overwritten.
        """
        log_probs_CV = logits_CV.log_softmax(-1)
        loss = F.nll_loss(log_probs_CV, labels_C, ignore_index=NO_LABEL, reduction="sum")
        return log_probs_CV, loss

    def sums_and_logits(self, logits_CV: Tensor, labels_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's log-sum-exp over the vocabulary, and its label's logit.

        Both are float32 [C]. This method works only on a GPU.
        """
        return fused_loss().sums_and_label_logits(logits_CV, labels_C, self.first_row)

    def loss_of_logits(
        self, logits_CV: Tensor, labels_C: Tensor, *, gradients: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the loss of a chunk; with `gradients`, also its gradient by the logits.

        The logits may be overwritten; the gradient has their dtype.
        """
        if has_kernels(logits_CV):
            log_sums_C, label_logits_C = self.sums_and_logits(logits_CV, labels_C)
            losses_C = (log_sums_C - label_logits_C).masked_fill(labels_C == NO_LABEL, 0)
            if gradients:
                fused_loss().replace_by_gradient(
                    logits_CV,
                    labels_C,
                    log_sums_C=log_sums_C,
                    first_row=self.first_row,
                    no_label=NO_LABEL,
                )
            return losses_C.sum(), logits_CV if gradients else None
        log_probs_CV, loss = self.log_probs(logits_CV.float(), labels_C)
        if not gradients:
            return loss, None
        grad_CV = gradient_of_logits(log_probs_CV.exp_(), labels_C, self.first_row)
        return loss, grad_CV.to(logits_CV.dtype)

    def tokens_per_chunk(self, rows: int, *, fused: bool) -> int:
        """Return the number of tokens per chunk for a weight with `rows` rows."""
        return tokens_per_chunk(rows, fused=fused)

    def loss_and_gradients(
        self, x_TD: Tensor, weight_VD: Tensor, labels_T: Tensor, *, gradients: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the loss; with `gradients`, also its gradients by `x_TD` and `weight_VD`."""
        size = self.tokens_per_chunk(weight_VD.shape[0], fused=has_kernels(x_TD))
        chunks = list(zip(x_TD.split(size), labels_T.split(size), strict=True))
        loss = x_TD.new_zeros((), dtype=torch.float32)
        grad_x_TD = torch.empty_like(x_TD) if gradients else None
        grad_weight_VD: Tensor | None = None
        for index, (x_CD, labels_C) in enumerate(chunks):
            logits_CV = x_CD @ weight_VD.T
            part, grad_CV = self.loss_of_logits(logits_CV, labels_C, gradients=gradients)
            loss += part
            if grad_x_TD is None:
                continue
            assert grad_CV is not None
            torch.mm(grad_CV, weight_VD, out=grad_x_TD[index * size : index * size + len(labels_C)])
            part_VD = grad_CV.T @ x_CD
            if grad_weight_VD is None:
                # Several chunks are summed in float32, because each addition in bfloat16 would
                # round.
                grad_weight_VD = part_VD if len(chunks) == 1 else part_VD.float()
            else:
                grad_weight_VD += part_VD
            del logits_CV, grad_CV  # before the next chunk's tensors are allocated
        return loss, grad_x_TD, grad_weight_VD


class _ChunkedLoss(torch.autograd.Function):
    """Computes gradients in forward, chunk by chunk; logits are neither kept nor recomputed.

    This costs the memory of one gradient of `x` and one of the weight between forward and backward.
    """

    @staticmethod
    def forward(
        ctx: Any, token_loss: TokenLoss, x_TD: Tensor, weight_VD: Tensor, labels_T: Tensor
    ) -> Tensor:
        loss, grad_x_TD, grad_weight_VD = token_loss.loss_and_gradients(
            x_TD, weight_VD, labels_T, gradients=True
        )
        ctx.save_for_backward(grad_x_TD, grad_weight_VD)
        ctx.in_place = token_loss.backward_runs_once
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, None]:
        grad_x_TD, grad_weight_VD = ctx.saved_tensors
        if not ctx.in_place:
            return None, grad_x_TD * grad.to(grad_x_TD.dtype), grad_weight_VD * grad, None
        # A second backward pass raises an error, because autograd detects that saved tensors have
        # changed.
        return None, grad_x_TD.mul_(grad), grad_weight_VD.mul_(grad), None


def has_kernels(tensor: Tensor) -> bool:
    """Return whether the kernels of `fused_loss` run on the device of a tensor."""
    return tensor.is_cuda


class FusedLoss(Protocol):
    """The functions of `trainer.kernels.fused_loss`, whose module needs Triton."""

    def sums_and_label_logits(
        self, logits_CR: Tensor, labels_C: Tensor, first_row: int
    ) -> tuple[Tensor, Tensor]:
        """Return the log-sum-exp and the logit of the label of each token."""

    def replace_by_gradient(
        self,
        logits_CR: Tensor,
        labels_C: Tensor,
        *,
        log_sums_C: Tensor,
        first_row: int,
        no_label: int,
    ) -> None:
        """Write the gradient of the summed loss over the logits."""


def fused_loss() -> FusedLoss:
    """Return the module of the kernels, imported late because only torch for GPUs has Triton."""
    from trainer.kernels import fused_loss

    return fused_loss


def gradient_of_logits(probs_CV: Tensor, labels_C: Tensor, first_row: int = 0) -> Tensor:
    """Replace probabilities by the loss' gradient by the logits: probability minus one-hot.

    `probs_CV` may cover a part of the vocabulary, from token `first_row`. Tokens without a label
    get the gradient 0.
    """
    rows_C1, here_C1 = rows_of_labels(labels_C[:, None], first_row, probs_CV.shape[1])
    probs_CV.scatter_add_(1, rows_C1, -here_C1.to(probs_CV.dtype))
    return probs_CV.mul_((labels_C != NO_LABEL)[:, None])


def rows_of_labels(labels: Tensor, first_row: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return each label's row in a part of the vocabulary, and whether the part has the label.

    The part has `rows` rows and starts at token `first_row`. A label outside of the part gets the
    nearest row of the part.
    """
    places = labels - first_row
    return places.clamp(0, rows - 1), (places >= 0) & (places < rows)
