"""A published tensor, and its place in a parameter of a model. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]
Place = tuple[int | slice, ...]


@dataclass(frozen=True)
class PublishedTensor:
    """A published tensor, and its place in a parameter of the model."""

    name: str
    place: Place
    """Index or slice for each dimension of the parameter; the tensor has only the sliced
    dimensions.
    """

    def copy_into(self, local: Tensor, region: tuple[slice, ...], stored: Any) -> None:
        """Copy the elements that a rank's part of the parameter shares with this tensor.

        Args:
            local: this rank's part.
            region: range of this rank's part in each dimension of the parameter.
            stored: slice of a safetensors file.
        """
        mine: list[int | slice] = []
        theirs: list[slice] = []
        for held, place in zip(region, self.place, strict=True):
            if isinstance(place, int):
                if not held.start <= place < held.stop:
                    return
                mine.append(place - held.start)
                continue
            low, high = max(held.start, place.start), min(held.stop, place.stop)
            if low >= high:
                return
            mine.append(slice(low - held.start, high - held.start))
            theirs.append(slice(low - place.start, high - place.start))
        local[tuple(mine)].copy_(stored[tuple(theirs)])


def whole(name: str, shape: Iterable[int]) -> tuple[PublishedTensor, ...]:
    """Return the published tensor that is a whole parameter."""
    return (PublishedTensor(name, tuple(slice(0, size) for size in shape)),)
