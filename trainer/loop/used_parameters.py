"""The parameters that a step has used on any rank, where forward depends on the data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.hooks import RemovableHandle


class UsedParameters:
    """Finds the parameters that got a gradient on any rank, and drops the gradients of the others.

    FSDP reduces a missing gradient as zeros. With those the optimizer would decay a weight and its
    moments, which it leaves untouched on one rank.
    """

    def __init__(self, model: nn.Module) -> None:
        """Watch a model to which FSDP has been applied."""
        self._model = model
        self._numbers = {name: number for number, (name, _) in enumerate(model.named_parameters())}
        self._used = [0] * len(self._numbers)
        self._handles: dict[str, RemovableHandle] = {}
        self.counts = True
        """Whether the next backward counts; that of a micro-batch without sequences does not."""
        for name, unit in model.named_modules():
            if isinstance(unit, FSDPModule):
                hook = partial(self._watch, name)
                # After FSDP's own hook: the parameters are then those of autograd.
                handle = nn.Module.register_forward_pre_hook(unit, hook)  # type: ignore[arg-type]
                self._handles[name] = handle

    def drop_others(self) -> None:
        """Drop the gradients of parameters that no rank has used since the last call.

        A collective; the host waits for it.
        """
        used = torch.tensor(self._used, dtype=torch.uint8, device="cpu")
        dist.all_reduce(used, op=dist.ReduceOp.MAX)
        for parameter, is_used in zip(self._model.parameters(), used.tolist(), strict=True):
            if not is_used:
                parameter.grad = None
        self._used = [0] * len(self._used)

    def _watch(self, unit_name: str, unit: nn.Module, _: object) -> None:
        """Watch the gathered parameters of a unit; FSDP keeps these tensors for all later steps."""
        self._handles.pop(unit_name).remove()
        for name, parameter in _own_parameters(unit, unit_name):
            number = self._numbers.get(name)  # None: a further name of a tied one
            if parameter.requires_grad and number is not None:
                parameter.register_post_accumulate_grad_hook(partial(self._mark, number))

    def _mark(self, number: int, _: Tensor) -> None:
        self._used[number] |= self.counts


def _own_parameters(unit: nn.Module, name: str) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters that a unit gathers: not those of units within it, whose shards call
    the hooks of autograd, too, for the gradient that FSDP has reduced."""
    yield from unit.named_parameters(prefix=name, recurse=False)
    for child_name, child in unit.named_children():
        if not isinstance(child, FSDPModule):
            yield from _own_parameters(child, f"{name}.{child_name}" if name else child_name)
