"""Requirements on an own model's parameters, and a check that forward does not break them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parameter import UninitializedParameter

from trainer.errors import LaunchError


def check_parameters(net: nn.Module) -> None:
    """Refuse parameters that FSDP cannot divide, even if this job runs on a single rank.

    Raises:
        LaunchError: a parameter has no shape yet, has no dimension or no element, has no
            floating-point dtype, or is not contiguous in memory.
    """
    for name, parameter in net.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise LaunchError(_refusal(name, "without a shape"))
        found = f"{list(parameter.shape)} of {parameter.dtype}"
        if parameter.ndim == 0 or not parameter.is_floating_point() or not parameter.numel():
            raise LaunchError(_refusal(name, found))
        if not parameter.is_contiguous():
            raise LaunchError(_refusal(name, f"{found} with strides {parameter.stride()}"))


def _refusal(name: str, found: str) -> str:
    return (
        f"own model: parameter {name} is {found}; legal: real numbers in at least one "
        "dimension, contiguous, such as torch.zeros(1)"
    )


def refuse_changed_requirements(model: nn.Module) -> None:
    """Make each forward pass refuse parameters that are thawed or frozen from now on.

    Call this after FSDP has been applied. Each unit is compared while it has its gathered
    parameters. The whole model is compared at the end of the forward pass, before ranks could
    reduce different gradients in the backward pass.

    The hooks raise LaunchError with the name of the parameter.
    """
    required = {name: p.requires_grad for name, p in model.named_parameters(remove_duplicate=False)}
    for name, unit in model.named_modules():
        if unit is model or isinstance(unit, FSDPModule):
            # Registered as the first hook, because FSDP's own hook frees the gathered parameters.
            nn.Module.register_forward_hook(unit, partial(_compare, required, name), prepend=True)  # type: ignore[arg-type]


def own_parameters(unit: nn.Module, name: str) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters that an FSDP unit gathers, without parameters of inner units."""
    yield from unit.named_parameters(prefix=name, recurse=False, remove_duplicate=False)
    for child_name, child in unit.named_children():
        if not isinstance(child, FSDPModule):
            yield from own_parameters(child, f"{name}.{child_name}" if name else child_name)


def _compare(required: Mapping[str, bool], name: str, unit: nn.Module, *_: object) -> None:
    whole = name == ""
    found = unit.named_parameters(remove_duplicate=False) if whole else own_parameters(unit, name)
    for parameter_name, parameter in found:
        before = required[parameter_name]
        if parameter.requires_grad != before:
            raise LaunchError(
                f"own model: parameter {parameter_name} was built with requires_grad={before}, "
                f"and forward has changed that, which the optimizer does not follow; legal: "
                "requires_grad=True throughout, and torch.no_grad() or detach() in forward"
            )
