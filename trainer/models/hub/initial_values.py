"""Initial values of a hub model's parameters, as its architecture defines them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


@dataclass(frozen=True)
class InitialValue:
    """How a parameter gets its first values: a constant, or a normal distribution."""

    std: float
    constant: float | None = None


class _Recorder(TorchDispatchMode):
    """Records the last operation that fills a parameter on the meta device; None if unknown."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names
        self.values: dict[str, InitialValue | None] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        tensor = args[0] if args else None
        if isinstance(tensor, Tensor) and func._schema.is_mutable:
            whole = self._names.get(id(tensor))
            name = whole or self._names.get(id(tensor._base))
            # The row of the padding token is drawn like every row.
            if name is not None and (whole or func is not aten.zero_.default):
                self.values[name] = _value(func, args[1:]) if whole else None
        return func(*args, **(kwargs or {}))


def initial_values(model: Any) -> dict[str, InitialValue | None]:
    """Return the initial values that a model on the meta device defines, by name of parameter.

    `initialize_weights` of transformers runs once. The value is None if its last fill is neither a
    constant nor a centred normal draw, or if nothing fills the parameter.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    recorder = _Recorder(names)
    with recorder:
        model.initialize_weights()
    return {name: recorder.values.get(name) for name in names.values()}


def _value(func: Any, arguments: tuple[Any, ...]) -> InitialValue | None:
    if func is aten.zero_.default:
        return InitialValue(0.0, constant=0.0)
    if func is aten.fill_.Scalar:
        return InitialValue(0.0, constant=float(arguments[0]))
    if func is aten.normal_.default:  # arguments equal to their defaults are absent
        given = dict(zip(("mean", "std"), arguments, strict=False))
        return InitialValue(float(given.get("std", 1.0))) if not given.get("mean") else None
    return None
