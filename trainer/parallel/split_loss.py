"""Loss parallelism: cross entropy with the vocabulary's rows split over tensor-parallel ranks.

Shapes: B sequences, S tokens, C tokens of a chunk, D model width, V vocabulary, R rows of the
vocabulary on this rank, N ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.placement_types import Placement

from trainer.data.batches import NO_LABEL
from trainer.models.head import TokenLoss, fused_loss, rows_of_labels


class SplitTokenLoss(TokenLoss):
    """`TokenLoss` with the weight's rows split over ranks; every rank returns the same sum.

    A rank computes the logits for its own rows. For each token, the ranks exchange only two
    numbers, the log-sum-exp of their logits and the label's logit, instead of logits over the whole
    vocabulary.
    """

    def __init__(self, stream: Placement, mesh: DeviceMesh) -> None:
        super().__init__()
        self._stream, self._mesh = stream, mesh

    @property
    def rank(self) -> int:
        """Index of this rank's part of the rows, from 0."""
        return self._mesh.get_local_rank()

    def forward(self, x_BSD: Tensor, weight_VD: Tensor, labels_BS: Tensor) -> Tensor:
        """Return the loss; `x_BSD` is this rank's part of the stream, but `labels_BS` is whole."""
        assert isinstance(weight_VD, DTensor)
        weight_RD = weight_VD.to_local()
        self.first_row = self.rank * weight_RD.shape[0]
        # Each rank computes the gradient through its own rows only, so backward sums over ranks.
        x_BSD = self._gathered(x_BSD).to_local(grad_placements=[Partial()])
        return super().forward(x_BSD, weight_RD, labels_BS)

    def logits(self, x_BSD: Tensor, weight_VD: Tensor) -> Tensor:
        """Return all tokens' logits over the whole vocabulary, [B, S, V], on each rank."""
        logits_BSV = F.linear(self._gathered(x_BSD), weight_VD)
        assert isinstance(logits_BSV, DTensor)
        return logits_BSV.full_tensor()

    def log_probs(self, logits_CR: Tensor, labels_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities for this rank's rows, and the loss of a chunk."""
        rows_C, here_C = rows_of_labels(labels_C, self.first_row, logits_CR.shape[1])
        label_logits_C = logits_CR.gather(1, rows_C[:, None]).squeeze(1)
        label_logits_C = label_logits_C.masked_fill(~here_C, -torch.inf)
        log_sums_C, label_logits_C = self._combined(logits_CR.logsumexp(-1), label_logits_C)
        losses_C = (log_sums_C - label_logits_C).masked_fill(labels_C == NO_LABEL, 0)
        return logits_CR.sub_(log_sums_C[:, None]), losses_C.sum()

    def sums_and_logits(self, logits_CR: Tensor, labels_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's log-sum-exp over the vocabulary, and its label's logit."""
        return self._combined(*super().sums_and_logits(logits_CR, labels_C))

    def _combined(self, log_sums_C: Tensor, label_logits_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return both values over the rows of all ranks, given the values over this rank's rows."""
        mine_2C = torch.stack([log_sums_C, label_logits_C])
        sums_NC, label_logits_NC = self._of_all_ranks(mine_2C).unbind(1)
        return sums_NC.logsumexp(0), label_logits_NC.amax(0)

    def _of_all_ranks(self, local: Tensor) -> Tensor:
        """Return the tensors of all N ranks, [N, ...]."""
        gathered = local.new_empty(self._mesh.size(), *local.shape)
        dist.all_gather(list(gathered), local, group=self._mesh.get_group())
        return gathered

    def _gathered(self, x_BSD: Tensor) -> DTensor:
        """Return the residual stream of all ranks."""
        stream = DTensor.from_local(x_BSD, self._mesh, [self._stream], run_check=False)
        return stream.redistribute(placements=[Replicate()])


class GatheredTokenLoss(SplitTokenLoss):
    """`TokenLoss` with split rows that gathers each chunk's logits from all ranks."""

    def log_probs(self, logits_CR: Tensor, labels_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities for this rank's rows, and the loss of a chunk."""
        logits_CV = self._of_all_ranks(logits_CR).movedim(0, 1).flatten(1)
        log_probs_CV, loss = TokenLoss.log_probs(self, logits_CV, labels_C)
        return log_probs_CV.narrow(1, self.first_row, logits_CR.shape[1]), loss

    def sums_and_logits(self, logits_CR: Tensor, labels_C: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's log-sum-exp over the vocabulary, and its label's logit."""
        logits_CV = self._of_all_ranks(logits_CR).movedim(0, 1).flatten(1)
        return fused_loss().sums_and_label_logits(logits_CV, labels_C, 0)

    def tokens_per_chunk(self, rows: int, *, fused: bool) -> int:
        """Return the tokens per chunk, for ranks that hold the logits of the whole vocabulary."""
        return super().tokens_per_chunk(rows * self._mesh.size(), fused=fused)
