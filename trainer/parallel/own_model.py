"""Tensor parallelism of an own model, according to its `tensor_parallel_plan`.

Shapes: B sequences, S tokens, T = B x S tokens, C tokens of a chunk, V vocabulary, R rows of the
vocabulary on this rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module

from trainer.errors import LaunchError
from trainer.models.own.own_model import LogitsLoss, OwnModel
from trainer.parallel.split_loss import SplitTokenLoss
from trainyard.spec.sections.parallelism import ParallelismSection


def split_by_plan(model: OwnModel, mesh: DeviceMesh, section: ParallelismSection) -> None:
    """Apply an own model's plan over the mesh's `tp` axis, in place.

    Modules that are not in the plan stay whole and compute the same result on each rank.

    Raises:
        LaunchError: a parameter cannot be split evenly, or a tied parameter is split in two ways.
    """
    tp = mesh["tp"]
    blocks = set(model.layers.values())
    there = dict(model.net.named_modules())
    for name, style in model.tensor_plan.items():
        if name in there:  # otherwise the module is in another pipeline stage
            parallelize_module(there[name], tp, style)
            if there[name] not in blocks:
                there[name].register_forward_hook(_wait_for_collective)
    model.keep_ties()
    for name, parameter in model.net.named_parameters():
        _refuse_uneven(name, parameter, tp)
    if section.loss_parallel:
        model.loss = SplitLogitsLoss(tp)


def _wait_for_collective(_module: nn.Module, _inputs: Any, result: Any) -> Any:
    """Return a module's output as a plain tensor, because compiled blocks accept no pending tensor.

    `clone` waits for the collective and, unlike `AsyncCollectiveTensor.wait`, keeps the autograd
    graph.
    """
    return result.clone() if isinstance(result, AsyncCollectiveTensor) else result


def _refuse_uneven(name: str, parameter: Tensor, tp: DeviceMesh) -> None:
    if not isinstance(parameter, DTensor):
        return
    (placement,) = parameter.placements
    if isinstance(placement, Shard) and parameter.shape[placement.dim] % tp.size():
        raise LaunchError(
            f"parallelism.tp={tp.size()} does not divide dimension {placement.dim} of {name} "
            f"{list(parameter.shape)}, which the model's tensor plan splits; "
            "legal: a tp that divides it"
        )


class SplitLogitsLoss(LogitsLoss):
    """`LogitsLoss` for logits split along the vocabulary; every rank returns the same sum."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._of_rows = SplitTokenLoss(Replicate(), mesh)

    def forward(self, logits_BSV: Tensor, labels_BS: Tensor) -> Tensor:
        """Return the loss of the split logits.

        Raises:
            LaunchError: the logits are not split along the vocabulary.
        """
        if not isinstance(logits_BSV, DTensor) or logits_BSV.placements != (Shard(2),):
            found = logits_BSV.placements if isinstance(logits_BSV, DTensor) else "whole ones"
            raise LaunchError(
                "parallelism.loss_parallel=true, but forward of the own model returned other "
                f"logits than a DTensor split along the vocabulary: {found}; "
                "legal: a tensor plan that leaves them so, or loss_parallel=false"
            )
        logits_BSR = logits_BSV.to_local()
        loss: Tensor = _LossOfRows.apply(  # type: ignore[no-untyped-call]
            self._of_rows, logits_BSR.flatten(0, 1), labels_BS.flatten()
        )
        return loss


class _LossOfRows(torch.autograd.Function):
    """Computes gradients in forward, chunk by chunk, without a float32 copy of all logits."""

    @staticmethod
    def forward(ctx: Any, of_rows: SplitTokenLoss, logits_TR: Tensor, labels_T: Tensor) -> Tensor:
        rows = logits_TR.shape[1]
        of_rows.first_row = of_rows.rank * rows
        size = of_rows.tokens_per_chunk(rows, fused=logits_TR.is_cuda)
        loss = logits_TR.new_zeros((), dtype=torch.float32)
        grad_TR = torch.empty_like(logits_TR)
        chunks = zip(logits_TR.split(size), labels_T.split(size), grad_TR.split(size), strict=True)
        for logits_CR, labels_C, grad_CR in chunks:
            # A copy, because the logits belong to the model, may have any memory format, and the
            # loss overwrites its input.
            copy_CR = logits_CR.clone(memory_format=torch.contiguous_format)
            part, of_chunk_CR = of_rows.loss_of_logits(copy_CR, labels_C, gradients=True)
            loss += part
            assert of_chunk_CR is not None
            grad_CR.copy_(of_chunk_CR)
        ctx.save_for_backward(grad_TR)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        # Not in place, because a zero-bubble schedule runs this backward pass twice, for inputs and
        # for weights.
        (grad_TR,) = ctx.saved_tensors
        return None, grad_TR * grad.to(grad_TR.dtype), None
