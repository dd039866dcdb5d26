"""Finds the parameters of an own model that a step has used on any rank."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.hooks import RemovableHandle

from trainer.errors import LaunchError
from trainer.models.own.data_dependence import ATTRIBUTE, is_alike
from trainer.models.own.parameter_rules import own_parameters


class UsedParameters:
    """Finds parameters with a gradient on any rank; drops gradients of all other parameters.

    FSDP replaces a missing gradient by zeros. With this gradient, the optimizer would decay the
    weight and its moments, although on a single rank they would stay unchanged.
    """

    def __init__(self, model: nn.Module) -> None:
        """Watch a model to which FSDP has been applied."""
        self._model = model
        self._numbers = {name: number for number, (name, _) in enumerate(model.named_parameters())}
        self._used = [0] * len(self._numbers)
        self._units: set[str] = set()
        """Names of the units that the forward pass has run and whose parameters get gradients."""
        self._reached: set[str] = set()
        """Names of the units that the current backward pass has reached."""
        self._handles: dict[str, RemovableHandle] = {}
        self.counts = True
        """Whether the next backward pass marks parameters as used; False without sequences."""
        for name, unit in model.named_modules():
            if isinstance(unit, FSDPModule):
                hook = partial(self._watch, name)
                # Registered after FSDP's hook; then the parameters are those that autograd uses.
                handle = nn.Module.register_forward_pre_hook(unit, hook)  # type: ignore[arg-type]
                self._handles[name] = handle

    def end_round(self) -> None:
        """Refuse a backward pass that missed a unit whose gradients other ranks reduce.

        Raises:
            LaunchError: the backward pass missed a unit; the message names it.
        """
        left, self._reached = sorted(self._units - self._reached), set()
        if left:
            raise LaunchError(
                f"own model: backward did not reach {left[0]} for some tokens; legal: "
                f"{ATTRIBUTE} = 'anywhere' in the module's class, or a loss that depends on every "
                "block of model.block_classes"
            )

    def drop_others(self) -> None:
        """Drop the gradients of parameters that no rank has used since the last call.

        This is a collective for which the host waits.
        """
        used = torch.tensor(self._used, dtype=torch.uint8, device="cpu")
        dist.all_reduce(used, op=dist.ReduceOp.MAX)
        for parameter, is_used in zip(self._model.parameters(), used.tolist(), strict=True):
            if not is_used:
                parameter.grad = None
        self._used = [0] * len(self._used)

    def _watch(self, unit_name: str, unit: nn.Module, _: object) -> None:
        """Watch the gathered parameters of a unit; FSDP keeps these tensors for all later steps.

        The shards are not watched, because hooks on the shards of inner units would also be called
        for gradients that FSDP has reduced.
        """
        self._handles.pop(unit_name).remove()
        for name, parameter in own_parameters(unit, unit_name):
            number = self._numbers.get(name)  # None for a second name of a tied parameter
            if parameter.requires_grad and number is not None:
                self._units.add(unit_name)
                mark = partial(self._mark, number, unit_name)
                parameter.register_post_accumulate_grad_hook(mark)

    def _mark(self, number: int, unit_name: str, _: Tensor) -> None:
        self._used[number] |= self.counts
        self._reached.add(unit_name)


class SameParameters:
    """Refuses a step if its parameters with a gradient differ from those of earlier steps.

    In a model without declared branches, FSDP pairs the gradients of different ranks only by their
    order. If two ranks used different parameters, FSDP would add up unrelated gradients.
    """

    def __init__(self, model: nn.Module, used: frozenset[str] | None) -> None:
        """Watch a model to which FSDP has been applied.

        Args:
            model: model to watch.
            used: names of the parameters that the backward pass reaches. If absent, the first step
                determines them; all ranks must then reach the same parameters.
        """
        self._parameters = dict(model.named_parameters())
        self._used = used

    def check(self) -> None:
        """Check the parameters after a backward pass whose gradients were reduced.

        Raises:
            LaunchError: other parameters than expected have gradients; the message names one of
                them.
        """
        found = frozenset(name for name, p in self._parameters.items() if p.grad is not None)
        if self._used is None:
            if not is_alike(sorted(found)):
                raise LaunchError(_refusal("ranks use other parameters in the first step"))
            self._used = found
        if found != self._used:
            (name, *_) = sorted(found ^ self._used)
            has = "has a" if name in found else "has no"
            raise LaunchError(_refusal(f"{name} {has} gradient, unlike usually"))


def _refusal(what: str) -> str:
    return (
        f"own model: forward uses parameters that vary: {what}; legal: {ATTRIBUTE} = "
        "'anywhere' or 'in_blocks' in the module's class, or the same parameters for all tokens"
    )
