"""The optimizer and its initial state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from trainer.errors import LaunchError
from trainer.sized_groups import sized_groups
from trainyard.base.problems import unmatched
from trainyard.spec.job import JobSpec

BUCKET_ELEMENTS = 1 << 26
"""Maximum number of elements whose moments are widened at a time; both widened moments then take
512 MiB in float32.
"""


def build_optimizer(model: nn.Module, spec: JobSpec) -> ShardAdamW:
    """Return Adam or AdamW over all parameters that require gradients.

    Weight decay applies to parameters with two or more dimensions, except those in `no_decay`.
    Norms, biases and scales do not decay. Adam is AdamW without decay. The loop sets the learning
    rate before each step.
    """
    section = spec.optimizer
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    decaying = {
        name for name in _matrices(model) if not any(part in name for part in section.no_decay)
    }
    decay = section.weight_decay if section.name == "adamw" else 0.0
    groups = [
        {"params": [p for n, p in parameters.items() if n in decaying], "weight_decay": decay},
        {"params": [p for n, p in parameters.items() if n not in decaying], "weight_decay": 0.0},
    ]
    return ShardAdamW(
        groups,
        lr=section.lr,
        betas=(section.beta1, section.beta2),
        eps=section.eps,
        state_dtype=getattr(torch, section.state_dtype),
    )


def refuse_unknown_matrices(model: nn.Module, spec: JobSpec) -> None:
    """Reject entries in `no_decay` that match no matrix of the whole model.

    Raises:
        LaunchError: an entry matches no matrix; the message names these entries and the matrices.
    """
    parts, names = spec.optimizer.no_decay, _matrices(model)
    unknown = unmatched(parts, names)
    if unknown:
        raise LaunchError(
            f"optimizer.no_decay={list(parts)}: no matrix has {', '.join(unknown)} in its name; "
            f"legal: parts of {', '.join(names)}"
        )


def _matrices(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad and p.ndim > 1]


def materialize_state(optimizer: Optimizer) -> None:
    """Create the missing optimizer state of each parameter: zero moments and step 0.

    Saving and loading need the state before the first step. torch's own helper is not used, because
    it runs a hidden step, which changes `step`.
    """
    dtype = optimizer.state_dtype if isinstance(optimizer, ShardAdamW) else None
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter, dtype=dtype)
                state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=dtype)


class _Slice(NamedTuple):
    """A part of one parameter, with its gradient and state as tensors of the same shape."""

    weight: Tensor
    gradient: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor


class ShardAdamW(AdamW):
    """AdamW (Loshchilov and Hutter, 2019) by torch's fused kernel, on the shards of this rank.

    The update is per element and needs no communication, so parameters may be on different meshes,
    which torch's own optimizer does not allow.

    The kernel requires moments in the dtype of the weights. Moments stored in another dtype are
    converted in buckets, updated, and rounded to nearest. A step that moves a bfloat16 moment by
    less than half a unit in the last place leaves the moment unchanged. So the relative error of
    the moment is at most 2^-8 / (1 - beta). `trainyard.spec.rules` rejects a beta for which this
    bound is 1 or more.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(groups, lr=lr, betas=betas, eps=eps, fused=True)
        self.state_dtype = state_dtype
        """Dtype in which both moments are stored."""
        self.grad_scale: Tensor | None = None
        """Divisor of the gradients in the next update: a float32 scalar on the gradients' device.
        The update also stores the divided gradients. With None, the gradients stay unchanged.
        torch's gradient scaler uses this name.
        """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; the host does not wait for the device."""
        assert closure is None
        materialize_state(self)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            torch._foreach_add_([self.state[p]["step"] for p in parameters], 1)
            # A rank's shard is empty if a parameter has fewer rows than there are ranks.
            slices = [s for s in map(self._slice, parameters) if s.weight.numel()]
            same_type = [s for s in slices if s.exp_avg.dtype == s.weight.dtype]
            if same_type:
                self._update(group, same_type)
            for bucket in _buckets(s for s in slices if s.exp_avg.dtype != s.weight.dtype):
                self._update_widened(group, bucket)

    def _slice(self, parameter: Tensor) -> _Slice:
        state = self.state[parameter]
        assert parameter.grad is not None
        weight, gradient = local_shard(parameter), local_shard(parameter.grad)
        # The fused kernel does not compare shapes. With a split weight and a whole gradient, it
        # would read the first elements of the gradient and train wrongly without an error.
        assert gradient.shape == weight.shape, "a gradient is not placed as its parameter"
        return _Slice(
            weight=weight,
            gradient=gradient,
            exp_avg=local_shard(state["exp_avg"]),
            exp_avg_sq=local_shard(state["exp_avg_sq"]),
            step=state["step"],
        )

    def _update_widened(self, group: dict[str, Any], slices: list[_Slice]) -> None:
        stored = [s.exp_avg for s in slices] + [s.exp_avg_sq for s in slices]
        wide = [torch.empty_like(s.weight) for s in slices + slices]
        torch._foreach_copy_(wide, stored)
        count = len(slices)
        widened = [
            s._replace(exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
            for s, exp_avg, exp_avg_sq in zip(slices, wide[:count], wide[count:], strict=True)
        ]
        self._update(group, widened)
        torch._foreach_copy_(stored, wide)

    def _update(self, group: dict[str, Any], slices: list[_Slice]) -> None:
        weights, gradients, exp_avgs, exp_avg_sqs, steps = map(list, zip(*slices, strict=True))
        beta1, beta2 = group["betas"]
        torch._fused_adamw_(
            weights,
            gradients,
            exp_avgs,
            exp_avg_sqs,
            [],
            steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=self.grad_scale,
        )


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's part of a DTensor; return a plain tensor unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _buckets(slices: Iterator[_Slice]) -> Iterator[list[_Slice]]:
    """Split slices to at most `BUCKET_ELEMENTS` elements; group them in order into buckets."""
    parts = chain.from_iterable(map(_cut, slices))
    return sized_groups(parts, lambda part: part.weight.numel(), most=BUCKET_ELEMENTS)


def _cut(whole: _Slice) -> Iterator[_Slice]:
    """Yield the parts of a slice as views; parts of a non-contiguous gradient are copies."""
    weights, moments = whole.weight.view(-1), (whole.exp_avg.view(-1), whole.exp_avg_sq.view(-1))
    columns = (weights, whole.gradient.reshape(-1), *moments)
    pieces = (column.split(BUCKET_ELEMENTS) for column in columns)
    for weight, gradient, exp_avg, exp_avg_sq in zip(*pieces, strict=True):
        yield _Slice(weight, gradient, exp_avg, exp_avg_sq, whole.step)
