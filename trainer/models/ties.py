"""Tied tensors: one tensor under several names in a module, kept tied through every change.

`to`, `to_empty` and tensor parallelism replace tensors name by name. Without `Ties.restore`, each
name would get its own tensor, which is another model that would train without an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.errors import LaunchError


class Ties:
    """Groups of names in a module that share one parameter or one buffer."""

    def __init__(self, module: nn.Module) -> None:
        """Find the groups; the first name in module order is the canonical name."""
        names: dict[int, list[str]] = {}
        for name, tensor in chain(
            module.named_parameters(remove_duplicate=False),
            module.named_buffers(remove_duplicate=False),
        ):
            names.setdefault(id(tensor), []).append(name)
        self._groups = [tuple(group) for group in names.values() if len(group) > 1]

    def restore(self, module: nn.Module) -> None:
        """Assign the tensor of a group's first name to all names in the group, in place.

        Names in removed modules are skipped.

        Raises:
            LaunchError: the tensors in a group are sharded differently.
        """
        for group in self._groups:
            places = [place for name in group if (place := _place(module, name)) is not None]
            for table, key, name in places[1:]:
                first_table, first_key, first_name = places[0]
                if table[key] is not first_table[first_key]:
                    _refuse_split((first_name, first_table[first_key]), (name, table[key]))
                    table[key] = first_table[first_key]


Table = dict[str, Tensor | None]


def _place(module: nn.Module, name: str) -> tuple[Table, str, str] | None:
    """Return the dict with a tensor, its key in the dict, and its full name; None if missing."""
    *path, key = name.split(".")
    for child in path:
        inner = module._modules.get(child)
        if inner is None:
            return None
        module = inner
    table: Table = module._parameters if key in module._parameters else module._buffers  # type: ignore[assignment]
    return (table, key, name) if table.get(key) is not None else None


def _refuse_split(first: tuple[str, Tensor | None], other: tuple[str, Tensor | None]) -> None:
    """Raise LaunchError if two names of one tensor are sharded differently."""
    (name, tensor), (alias, tied) = first, other
    if _split(tensor) != _split(tied):
        raise LaunchError(
            f"own model: {name} and {alias} are one weight, but the tensor plan makes the "
            f"first {_split(tensor)} and the second {_split(tied)}; legal: styles that split both "
            "alike, or weights of their own"
        )


def _split(tensor: Tensor | None) -> str:
    return str(tensor.placements) if isinstance(tensor, DTensor) else "whole"


def aliases(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield each additional name of a tied parameter, with its canonical name."""
    canonical: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if (first := canonical.setdefault(id(parameter), name)) != name:
            yield name, first


def tied_parameters(module: nn.Module) -> set[int]:
    """Return the `id` of each parameter that has several names."""
    return {each for each, count in _holders(module).items() if count > 1}


def tied_outside(module: nn.Module, parts: list[nn.Module]) -> set[nn.Module]:
    """Return the parts that share a parameter with a module outside of the part."""
    everywhere = _holders(module)
    return {
        part
        for part in parts
        if any(everywhere[each] > count for each, count in _holders(part).items())
    }


def _holders(module: nn.Module) -> Counter[int]:
    """Return the number of names for each parameter, by the parameter's `id`."""
    return Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
