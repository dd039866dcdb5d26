"""Initial values of a hub model's parameters, as its architecture defines them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


@dataclass(frozen=True)
class InitialValue:
    """How a parameter gets its first values: a constant, or a normal distribution."""

    std: float
    constant: float | None = None


class _Recorder(TorchDispatchMode):
    """Records the last fill of each whole parameter by a constant or a centred normal draw."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names
        self.values: dict[str, InitialValue] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        tensor = args[0] if args else None
        name = self._names.get(id(tensor)) if isinstance(tensor, Tensor) else None
        if name is not None and (value := _value(func, args[1:])) is not None:
            self.values[name] = value
        return func(*args, **(kwargs or {}))


def initial_values(model: Any) -> dict[str, InitialValue]:
    """Return the initial values that a model on the meta device defines, by name of parameter.

    `initialize_weights` of transformers runs once; its constants and centred normal draws are
    recorded. Other draws are omitted.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    recorder = _Recorder(names)
    with recorder:
        model.initialize_weights()
    return recorder.values


def default_value(name: str, parameter: nn.Parameter, std: float) -> InitialValue:
    """Return the initial value of a parameter for which the architecture defines none."""
    if name.endswith("bias"):
        return InitialValue(std, constant=0.0)
    return InitialValue(std, constant=1.0 if parameter.ndim < 2 else None)


def _value(func: Any, arguments: tuple[Any, ...]) -> InitialValue | None:
    if func is aten.zero_.default:
        return InitialValue(0.0, constant=0.0)
    if func is aten.fill_.Scalar:
        return InitialValue(0.0, constant=float(arguments[0]))
    if func is aten.normal_.default:  # arguments equal to their defaults are absent
        given = dict(zip(("mean", "std"), arguments, strict=False))
        return InitialValue(float(given.get("std", 1.0))) if not given.get("mean") else None
    return None
