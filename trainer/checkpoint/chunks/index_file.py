"""`index.json`: divisions and writers, which determine the place of each chunk in a file.

The size of the index depends on the number of tensors, not on the number of ranks or chunks. Its
content is the same for all saves of an attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field, ValidationError

from trainer.checkpoint.chunks.divided_tensor import (
    DTYPES,
    Digit,
    DividedKind,
    DividedTensor,
    Division,
    Sizes,
)
from trainer.checkpoint.chunks.ownership import Ownership
from trainer.checkpoint.tensors import frame_of
from trainyard.base.model_base import RecordModel
from trainyard.spec.layout import Layout

INDEX_VERSION: Literal[1] = 1
"""Version of the record, and of the rules in `DividedKind` and `Ownership` for the places of
chunks."""
SUFFIX = ".distcp"

Count = Annotated[int, Field(ge=0, lt=2**62)]
Number = Annotated[int, Field(ge=1, le=2**20)]


class StoredChunk(NamedTuple):
    """A stored chunk of a tensor."""

    file: str
    """Name of the file that holds the chunk."""
    offset: int
    """Offset of the chunk in the file, in bytes."""
    length: int
    """Length in bytes, including the bytes that `torch.save`'s format adds."""
    offsets: Sizes
    """First index in each dimension of the tensor."""
    sizes: Sizes
    """Number of elements in each dimension."""


class _Kind(RecordModel):
    dtype: str
    shape: tuple[Count, ...]
    divisions: tuple[tuple[Count, Number, Number], ...] = ()
    """Dimension, number of parts and stride of each division."""
    overheads: tuple[tuple[tuple[Count, ...], Annotated[int, Field(ge=0, lt=2**20)]], ...]
    """Number of bytes that `torch.save`'s format adds to a chunk's elements, for each size of a
    chunk.
    """


class _Record(RecordModel):
    version: Literal[1]
    world_size: Number
    writers: tuple[Count, ...]
    kinds: tuple[_Kind, ...]
    stages: Annotated[tuple[tuple[tuple[str, Count], ...], ...], Field(min_length=1)]
    """For each pipeline stage, each tensor's name and index in `kinds`."""


class ChunkIndex:
    """The places of all chunks of a checkpoint."""

    def __init__(
        self, ownership: Ownership, overheads: Mapping[tuple[str, Sizes], int] | None = None
    ) -> None:
        """Describe the index; nothing is computed yet.

        Args:
            ownership: assigns a writer to each chunk.
            overheads: bytes that the format adds to a chunk, by dtype and sizes; by default, the
                values for this version of torch.
        """
        self.ownership = ownership
        self._overheads = overheads
        self._overlaps: dict[tuple[DividedKind, Sizes, Sizes], list[dict[Digit, int]]] = {}

    def overhead(self, dtype: str, sizes: Sizes) -> int:
        """Return the number of bytes that the format adds to a chunk's elements."""
        if self._overheads is not None:
            return self._overheads[dtype, sizes]
        frame = frame_of(DTYPES[dtype], torch.Size(sizes))
        return len(frame.head) + len(frame.tail)

    def overlapping(self, name: str, offsets: Sizes, sizes: Sizes) -> Iterator[StoredChunk]:
        """Yield the stored chunks that overlap a box of a tensor."""
        tensor = self.ownership.tensors[name]
        # Weights and moments of all layers are divided alike, so there are few different keys.
        key = (tensor.kind, offsets, sizes)
        if key not in self._overlaps:
            self._overlaps[key] = list(tensor.kind.overlapping(offsets, sizes))
        for parts in self._overlaps[key]:
            place = self.ownership.place(tensor, parts, self.overhead)
            yield StoredChunk(
                file_name(place.writer), place.offset, place.length, *tensor.kind.box_at(parts)
            )

    def file_size(self, rank: int) -> int:
        """Return the size of the file that a rank writes, in bytes; 0 if it writes no file."""
        return self.ownership.file_size(rank, self.overhead)

    def to_bytes(self) -> bytes:
        """Return the content of `index.json`."""
        ownership = self.ownership
        kinds = list(dict.fromkeys(tensor.kind for tensor in ownership.tensors.values()))
        numbers = {kind: number for number, kind in enumerate(kinds)}
        record = _Record(
            version=INDEX_VERSION,
            world_size=ownership.world_size,
            writers=ownership.writers,
            kinds=tuple(
                _Kind(
                    dtype=kind.dtype,
                    shape=kind.shape,
                    divisions=tuple((d.dim, d.parts, d.stride) for d in kind.divisions),
                    overheads=tuple(
                        (sizes, self.overhead(kind.dtype, sizes))
                        for sizes in sorted(kind.box_sizes())
                    ),
                )
                for kind in kinds
            ),
            stages=tuple(
                tuple(
                    sorted(
                        (tensor.name, numbers[tensor.kind])
                        for tensors in stage.values()
                        for tensor in tensors
                    )
                )
                for stage in ownership.stages
            ),
        )
        return record.model_dump_json().encode()


def parse_index(content: bytes, layout: Layout) -> ChunkIndex:
    """Parse the index of a checkpoint that was written with a given layout.

    The content is not trusted: each number is checked against its limits.

    Raises:
        ValueError: the content is not an index for that layout; the message names the fault.
    """
    try:
        record = _Record.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = "/".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}") from None
    world_size = record.world_size
    if (world_size, len(record.stages)) != (layout.world_size, layout.pp):
        raise ValueError(
            f"it is of {world_size} ranks in {len(record.stages)} stages, not {layout}"
        )
    ascending = all(low < high for low, high in pairwise(record.writers))
    if not record.writers or not ascending or record.writers[-1] >= world_size:
        raise ValueError(f"writers: no ascending list of ranks below {world_size}")
    kinds = [_checked(kind, world_size // layout.pp) for kind in record.kinds]
    overheads = {(k.dtype, sizes): bytes_ for k in record.kinds for sizes, bytes_ in k.overheads}
    for kind in kinds:
        for sizes in kind.box_sizes():
            if (kind.dtype, sizes) not in overheads:
                raise ValueError(f"kinds: no overhead of {kind.dtype} {sizes}")
    stages = [_tensors(stage, kinds) for stage in record.stages]
    ownership = Ownership(stages, world_size=world_size, writers=record.writers)
    return ChunkIndex(ownership, overheads)


def _tensors(stage: Sequence[tuple[str, int]], kinds: Sequence[DividedKind]) -> list[DividedTensor]:
    if any(number >= len(kinds) for _, number in stage):
        raise ValueError("stages: a tensor has none of the kinds")
    if any(low >= high for (low, _), (high, _) in pairwise(stage)):
        raise ValueError("stages: the names are not ascending")
    return [DividedTensor(name, kinds[number]) for name, number in stage]


def _checked(record: _Kind, stage_size: int) -> DividedKind:
    """Return a record's kind, with chunks that cover its shape and belong to ranks of the stage.

    Raises:
        ValueError: a dtype, a dimension or a division is invalid.
    """
    if record.dtype not in DTYPES:
        raise ValueError(f"kinds: {record.dtype!r} is no type of numbers")
    divisions = tuple(Division(*division) for division in record.divisions)
    if any(division.dim >= len(record.shape) for division in divisions):
        raise ValueError(f"kinds: a division of a dimension that {record.shape} lacks")
    kind = DividedKind(record.dtype, record.shape, divisions)
    # The digits are independent: each combination of digits belongs to a rank of the stage.
    digits = sorted(kind.digits, key=lambda digit: digit[1])
    widths = [1, *(parts * stride for parts, stride in digits)]
    strides = [*(stride for _, stride in digits), stage_size]
    if any(stride % width for width, stride in zip(widths, strides, strict=True)):
        raise ValueError(f"kinds: {record.divisions} divide no {stage_size} ranks")
    return kind


def file_name(rank: int) -> str:
    """Return the name of the file that a rank writes; it is the name that DCP uses."""
    return f"__{rank}_0{SUFFIX}"


def rank_of_file(name: str) -> int | None:
    """Return the rank that wrote a file; None for a file that holds no tensors."""
    number = name.removeprefix("__").removesuffix(f"_0{SUFFIX}")
    return int(number) if number.isdecimal() and name == file_name(int(number)) else None


def index_of(
    stages: Sequence[Sequence[DividedTensor]], *, world_size: int, writers: Sequence[int]
) -> ChunkIndex:
    """Return the index for a save with this version of torch."""
    return ChunkIndex(Ownership(stages, world_size=world_size, writers=writers))
