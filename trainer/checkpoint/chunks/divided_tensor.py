"""The division of one tensor over the ranks, computed from rank numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from trainer.errors import CheckpointError

Sizes = tuple[int, ...]
DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
"""Dtypes by name."""
Digit = tuple[int, int]
"""Parts and stride of a `Division`; rank r holds part `r // stride % parts`."""


def itemsize(dtype: str) -> int:
    """Return the bytes of one element of a dtype, such as 4 for `float32`."""
    return DTYPES[dtype].itemsize


class Division(NamedTuple):
    """A dimension cut into parts as by `torch.chunk`; rank r holds part `r // stride % parts`."""

    dim: int
    """Dimension of the tensor that is cut."""
    parts: int
    """Number of parts; the last parts may be smaller or empty."""
    stride: int
    """Difference in rank number between the holders of two adjacent parts."""

    @property
    def digit(self) -> Digit:
        """Parts and stride."""
        return self.parts, self.stride


class TensorChunk(NamedTuple):
    """A box of a tensor that is stored in one file."""

    name: str
    """Name of the tensor."""
    dtype: str
    """Dtype of the tensor, such as `float32`."""
    offsets: Sizes
    """First index in each dimension of the tensor."""
    sizes: Sizes
    """Number of elements in each dimension."""

    @property
    def bytes(self) -> int:
        """Size of the elements in bytes."""
        return prod(self.sizes) * itemsize(self.dtype)


@dataclass(frozen=True)
class TensorKind:
    """Dtype and shape; both must match to read one tensor into another."""

    dtype: str
    shape: Sizes

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


@dataclass(frozen=True)
class DividedKind:
    """Dtype, shape and divisions, which many tensors share."""

    dtype: str
    shape: Sizes
    divisions: tuple[Division, ...]
    """Divisions in the order of application; each one divides the parts of the previous ones."""

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape} divided by {list(map(tuple, self.divisions))}"

    @property
    def digits(self) -> tuple[Digit, ...]:
        """Sorted digits that select a chunk; ranks with equal digits hold the same chunk."""
        return tuple(sorted(division.digit for division in self.divisions))

    def box_of(self, rank: int) -> tuple[Sizes, Sizes]:
        """Return offsets and sizes of a rank's chunk."""
        return self.box_at({(p, s): rank // s % p for _, p, s in self.divisions})

    def box_at(self, parts: dict[Digit, int]) -> tuple[Sizes, Sizes]:
        """Return offsets and sizes of the chunk selected by digits."""
        offsets, sizes = [0] * len(self.shape), list(self.shape)
        for division in self.divisions:
            dim = division.dim
            start, sizes[dim] = _part(sizes[dim], division.parts, parts[division.digit])
            offsets[dim] += start
        return tuple(offsets), tuple(sizes)

    def overlapping(self, offsets: Sizes, sizes: Sizes) -> Iterator[dict[Digit, int]]:
        """Yield the digits of each chunk that overlaps a box."""
        found = []
        for dim, (low, size) in enumerate(zip(offsets, sizes, strict=True)):
            own = tuple(d for d in self.divisions if d.dim == dim)
            found.append(
                [
                    digits
                    for start, length, digits in _parts_of(self.shape[dim], own)
                    if max(start, low) < min(start + length, low + size)
                ]
            )
        for digits in product(*found):
            yield {digit: part for one in digits for digit, part in one}

    def box_sizes(self) -> set[Sizes]:
        """Return the sizes of all non-empty chunks, each once."""
        lengths = [{size} - {0} for size in self.shape]
        for dim, parts, _ in self.divisions:
            # Computed without listing the parts, because an untrusted index may name a million
            # parts.
            longest = {size: -(-size // parts) for size in lengths[dim]}
            lengths[dim] = {n for size in longest for n in (longest[size], size % longest[size])}
            lengths[dim] -= {0}
        return set(product(*lengths))


def _part(size: int, parts: int, number: int) -> tuple[int, int]:
    """Return start and length of part `number`, if `size` indices are cut into `parts` parts."""
    longest = -(-size // parts)
    start = min(number * longest, size)
    return start, min(longest, size - start)


@lru_cache(maxsize=4096)
def _parts_of(
    size: int, divisions: tuple[Division, ...]
) -> list[tuple[int, int, tuple[tuple[Digit, int], ...]]]:
    """Return start, length and digits of all parts of one dimension, in ascending order of index.

    The parts cover the dimension exactly once, because each division cuts a part into pieces that
    cover the part exactly once.
    """
    found: list[tuple[int, int, tuple[tuple[Digit, int], ...]]] = [(0, size, ())]
    for division in divisions:
        found = [
            (start + inner, length, (*digits, (division.digit, number)))
            for start, whole, digits in found
            for number in range(division.parts)
            for inner, length in [_part(whole, division.parts, number)]
        ]
    return found


@dataclass(frozen=True)
class DividedTensor:
    """A tensor of a checkpoint, with its divisions."""

    name: str
    kind: DividedKind


def divided(tensors: Mapping[str, Tensor], *, rank: int) -> tuple[DividedTensor, ...]:
    """Return the divisions of a rank's tensors, sorted by name.

    The result is the same on all ranks that hold the same tensors.

    Raises:
        CheckpointError: the division of a tensor cannot be computed from rank numbers.
    """
    found: list[DividedTensor] = []
    known: dict[object, DividedKind] = {}  # weights and moments of all layers are divided alike
    for name, tensor in sorted(tensors.items()):
        where = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else ()
        local = _local_shape(tensor)
        key = (tensor.dtype, tensor.shape, where, local)
        if key not in known:
            known[key] = _kind(name, tensor, rank)
        found.append(DividedTensor(name, known[key]))
    return tuple(found)


def _local_shape(tensor: Tensor) -> Sizes:
    return tuple(tensor._local_tensor.shape if isinstance(tensor, DTensor) else tensor.shape)


def _kind(name: str, tensor: Tensor, rank: int) -> DividedKind:
    divisions: tuple[Division, ...] = ()
    if isinstance(tensor, DTensor):
        divisions = tuple(_divisions(name, tensor.device_mesh, tensor.placements))
    kind = DividedKind(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), divisions)
    _, sizes = kind.box_of(rank)
    if sizes != (local := _local_shape(tensor)):
        raise CheckpointError(
            f"{name}: rank {rank} holds {local} of {tuple(tensor.shape)}, but a division by "
            f"{list(map(tuple, divisions))} gives it {sizes}"
        )
    return kind


def _divisions(name: str, mesh: DeviceMesh, placements: Sequence[Placement]) -> Iterator[Division]:
    strides = _strides(mesh)
    plain: list[Division] = []
    strided: list[Division] = []
    for placement, parts, stride in zip(placements, mesh.shape, strides, strict=True):
        if isinstance(placement, Shard | _StridedShard):
            if parts > 1:
                # A strided shard comes last, because it cuts the parts made by later axes of the
                # mesh.
                late = isinstance(placement, _StridedShard)
                (strided if late else plain).append(Division(placement.dim, parts, stride))
        elif not isinstance(placement, Replicate):
            raise CheckpointError(f"{name} is {placement} over a mesh: it has no values to save")
    yield from plain
    yield from strided


@lru_cache(maxsize=64)
def _strides(mesh: DeviceMesh) -> tuple[int, ...]:
    """Return the difference in rank number between neighbours, for each axis of a mesh.

    Raises:
        CheckpointError: the positions on the axes do not follow from the rank numbers.
    """
    ranks = mesh.mesh
    first = int(ranks.flatten()[0])
    strides = tuple(
        int(ranks.select(axis, 1).flatten()[0]) - first if size > 1 else 1
        for axis, size in enumerate(ranks.shape)
    )
    even = torch.full_like(ranks, first)
    for axis, (size, stride) in enumerate(zip(ranks.shape, strides, strict=True)):
        steps = stride * torch.arange(size, dtype=ranks.dtype)
        even += steps.reshape([-1 if other == axis else 1 for other in range(ranks.ndim)])
    begins = all(
        stride > 0 and first // stride % size == 0
        for size, stride in zip(ranks.shape, strides, strict=True)
    )
    if not (begins and torch.equal(even, ranks)):
        raise CheckpointError(f"the ranks of {mesh} are not evenly spaced along each axis")
    return strides
