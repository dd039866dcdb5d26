"""Assigns each chunk to a writer and to a place in the writer's file, from the divisions alone.

Every rank computes its own part of the assignment, without a list of all ranks. Files do not store
the assignment, so a reader must compute the same assignment as the writer. A changed rule needs a
new `INDEX_VERSION` (`index_file`), and the old rule must stay for old files.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from trainer.checkpoint.chunks.divided_tensor import (
    Digit,
    DividedKind,
    DividedTensor,
    Sizes,
    TensorChunk,
    itemsize,
)

ALIGNED = 64
"""Alignment of each chunk in its file, in bytes: a cache line.

`torch.save` aligns the elements within a chunk to the same number. Equal alignment of memory and
file makes copies 20 % faster (measured for reads on an EPYC).
"""

WEIGHT = 1536
"""Bytes added to each chunk's size when chunks are balanced over the writers."""

SMALLEST_BLOCK = 32
"""Minimum number of ranks in a block. If no writer holds a chunk, a writer of the holders' block
writes the chunk. Fewer writers in a smaller block would divide such chunks less evenly.
"""

Overhead = Callable[[str, Sizes], int]
"""Maps dtype and sizes of a chunk to the number of bytes that the format adds to the chunk."""


@dataclass(frozen=True)
class WriteShare:
    """Chunks that a rank writes and sends; sender and receiver have the same order of transfers."""

    own: tuple[TensorChunk, ...] = ()
    """Chunks that this rank holds and writes; they come first in its file."""
    received: tuple[tuple[TensorChunk, int], ...] = ()
    """Chunks that this rank receives from other ranks and writes after its own, each with its
    sender.
    """
    sends: tuple[tuple[TensorChunk, int], ...] = ()
    """Chunks that this rank holds and sends, each with the rank that writes it."""

    @property
    def written(self) -> list[TensorChunk]:
        """Chunks in the order in which they are written to the file."""
        return [*self.own, *(chunk for chunk, _ in self.received)]


class ChunkPlace(NamedTuple):
    """The place of a stored chunk in a file."""

    writer: int
    """Rank that writes the file; it is part of the file's name."""
    offset: int
    """Offset of the chunk in the file, in bytes."""
    length: int
    """Length in bytes, including the bytes that the format adds."""


@dataclass(frozen=True, eq=False)
class _Choice:
    """The writer or the sender of each chunk, among the ranks that hold the same chunks."""

    turns: Mapping[str, int]
    """By tensor, the candidate number of the rank that writes or sends the chunk; empty chunks are
    omitted.
    """
    taken: frozenset[int]
    """Candidate numbers that occur in `turns`."""


class _Group(NamedTuple):
    """Ranks that hold the same chunks of some tensors."""

    candidates: Sequence[int]
    """The writers in the group, ascending; all ranks of the group if it has no writer."""
    choice: _Choice

    def turn(self, rank: int) -> int | None:
        """Return a rank's candidate number if it has chunks to write or send; otherwise None."""
        number = bisect_left(self.candidates, rank)
        return number if number in self.choice.taken and self.candidates[number] == rank else None


class _Form(NamedTuple):
    """Places of the chunks that a writer itself holds; received chunks follow in the file."""

    places: Mapping[str, tuple[int, int]]
    """Offset and length of each chunk in bytes, by tensor."""
    end: int
    """Size of these chunks in the file, in bytes, including gaps for alignment."""


class Ownership:
    """The chunks of all ranks; each method computes only the chunks of the ranks that it needs.

    Ranks in different replicas hold the same chunks and divide the work of writing them. Each
    chunk, the largest first, goes to the least loaded writer among these ranks. All scalars of
    a stage go to its first writer, so that a load opens one file for them. The ranks are divided
    into blocks with equally many writers. If no writer holds a chunk, one of its holders sends the
    chunk to a writer in the holder's block.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[DividedTensor]],
        *,
        world_size: int,
        writers: Sequence[int],
    ) -> None:
        """Describe the chunks; nothing is computed yet.

        Args:
            stages: tensors of each pipeline stage, sorted by name; all ranks of a stage hold them.
                A tensor that occurs in two stages counts only in the first one.
            world_size: number of ranks; each stage has an equal number of consecutive ranks.
            writers: ranks that write, in ascending order.
        """
        self._given = [tuple(stage) for stage in stages]
        self.world_size = world_size
        self.writers = tuple(writers)
        self.tensors: dict[str, DividedTensor] = {}
        """All tensors, by name."""
        self.stages: list[dict[tuple[Digit, ...], list[DividedTensor]]] = []
        """Tensors of each stage, by the digits that select their chunks."""
        self._stage_of: dict[str, int] = {}
        for number, stage in enumerate(stages):
            by_digits: dict[tuple[Digit, ...], list[DividedTensor]] = {}
            for tensor in stage:
                if tensor.name not in self.tensors:
                    self.tensors[tensor.name] = tensor
                    self._stage_of[tensor.name] = number
                    by_digits.setdefault(tensor.kind.digits, []).append(tensor)
            self.stages.append(by_digits)
        self._stage_size = world_size // len(stages)
        self._writes = np.zeros(world_size, dtype=bool)
        self._writes[list(writers)] = True
        self._groups: dict[tuple[int, tuple[Digit, ...]], _Group] = {}
        self._choices: dict[tuple[object, ...], _Choice] = {}
        self._blocks: dict[int, dict[int, WriteShare]] = {}
        self._places: dict[int, dict[tuple[str, Sizes], ChunkPlace]] = {}
        self._forms: dict[tuple[tuple[_Choice, int], ...], _Form] = {}
        self._form_of_writer: dict[int, _Form] = {}

    def divides(self, stages: Sequence[Sequence[DividedTensor]]) -> bool:
        """Return whether `stages` has the tensors of this object, with the same divisions."""
        return self._given == [tuple(stage) for stage in stages]

    @property
    def numbers_bytes(self) -> int:
        """Size of the elements of all tensors, in bytes; all writers together write them once."""
        return sum(_bytes(kind, kind.shape) for kind in (t.kind for t in self.tensors.values()))

    def share(self, rank: int) -> WriteShare:
        """Return the chunks that a rank writes and sends."""
        if self._sends:
            return self._block(rank // self._block_size)[rank]
        return WriteShare(own=tuple(self._held(rank)))

    def place(
        self, tensor: DividedTensor, parts: Mapping[Digit, int], overhead: Overhead
    ) -> ChunkPlace:
        """Return the place of the chunk that the digits select."""
        first = self._stage_of[tensor.name] * self._stage_size
        rank = first + sum(part * stride for (_, stride), part in parts.items())
        group = self._group(tensor.kind.digits, rank)
        holder = group.candidates[group.choice.turns[tensor.name]]
        if self._writes[holder]:
            return ChunkPlace(holder, *self._form(holder, overhead).places[tensor.name])
        writer = next(w for chunk, w in self.share(holder).sends if chunk.name == tensor.name)
        offsets, _ = tensor.kind.box_of(rank)
        return self.places(writer, overhead)[tensor.name, offsets]

    def places(self, writer: int, overhead: Overhead) -> dict[tuple[str, Sizes], ChunkPlace]:
        """Return the place of each chunk in a writer's file, by tensor and offsets."""
        if writer not in self._places:
            chunks = self.share(writer).written
            self._places[writer] = {
                (chunk.name, chunk.offsets): ChunkPlace(writer, start, length)
                for chunk, start, length in _laid_out(chunks, overhead)
            }
        return self._places[writer]

    def file_size(self, writer: int, overhead: Overhead) -> int:
        """Return the size of a writer's file, in bytes; 0 if it writes no file."""
        if self._sends:
            places = self.places(writer, overhead).values()
            return max((place.offset + place.length for place in places), default=0)
        return self._form(writer, overhead).end

    def _form(self, writer: int, overhead: Overhead) -> _Form:
        """Return the places of the chunks that a writer itself holds.

        Files with chunks of the same tensors and sizes share one cached form. A resume on another
        layout opens hundreds of files with few forms, so the cache saves time.
        """
        if writer not in self._form_of_writer:
            stage = self.stages[writer // self._stage_size]
            groups = [self._group(digits, writer) for digits in stage]
            turns = [(group.choice, group.turn(writer)) for group in groups]
            key = tuple((choice, turn) for choice, turn in turns if turn is not None)
            if key not in self._forms:
                places, end = {}, 0
                for chunk, start, length in _laid_out(self._held(writer), overhead):
                    places[chunk.name], end = (start, length), start + length
                self._forms[key] = _Form(places, end)
            self._form_of_writer[writer] = self._forms[key]
        return self._form_of_writer[writer]

    def _held(self, rank: int) -> list[TensorChunk]:
        """Return a rank's chunks to write or send; scalars first, because many ranks read them."""
        found = []
        for digits, tensors in self.stages[rank // self._stage_size].items():
            group = self._group(digits, rank)
            turn = group.turn(rank)
            if turn is None:
                continue
            boxes: dict[DividedKind, tuple[Sizes, Sizes]] = {}
            for name, kind in ((t.name, t.kind) for t in tensors):
                if group.choice.turns.get(name) == turn:
                    if kind not in boxes:
                        boxes[kind] = kind.box_of(rank)
                    found.append(TensorChunk(name, kind.dtype, *boxes[kind]))
        return sorted(found, key=lambda chunk: (len(chunk.sizes) > 0, chunk.name))

    def _group(self, digits: tuple[Digit, ...], rank: int) -> _Group:
        """Return the ranks that hold the same chunks as `rank`, for tensors with `digits`."""
        stage = rank // self._stage_size
        first = stage * self._stage_size + sum(rank // s % p * s for p, s in digits)
        if (first, digits) not in self._groups:
            ranks = np.arange(stage * self._stage_size, (stage + 1) * self._stage_size)
            for parts, stride in digits:
                ranks = ranks[ranks // stride % parts == rank // stride % parts]
            writing = ranks[self._writes[ranks]]
            candidates = (writing if len(writing) else ranks).tolist()
            choice = self._choice(stage, digits, rank=rank, count=len(candidates))
            self._groups[first, digits] = _Group(candidates, choice)
        return self._groups[first, digits]

    def _choice(self, stage: int, digits: tuple[Digit, ...], *, rank: int, count: int) -> _Choice:
        """Return, for each tensor, the number of the candidate that writes or sends the chunk.

        `rank` is any rank of the group, and only gives the sizes of chunks. Groups with the same
        tensors, sizes and number of candidates share one choice.
        """
        tensors = self.stages[stage][digits]
        sizes = {kind: kind.box_of(rank)[1] for kind in self._kinds[stage][digits]}
        key = (stage, digits, count, *sizes.values())
        if key not in self._choices:
            turns = _shared_out(tensors, sizes, count)
            self._choices[key] = _Choice(turns, frozenset(turns.values()))
        return self._choices[key]

    @cached_property
    def _kinds(self) -> list[dict[tuple[Digit, ...], list[DividedKind]]]:
        """Kinds of the tensors in `stages`, each kind once per stage."""
        return [
            {digits: list(dict.fromkeys(t.kind for t in found)) for digits, found in stage.items()}
            for stage in self.stages
        ]

    @cached_property
    def _sends(self) -> bool:
        """Whether there is a chunk that no writer holds."""
        for number, stage in enumerate(self.stages):
            ranks = np.arange(number * self._stage_size, (number + 1) * self._stage_size)
            for digits in stage:
                group = sum((ranks // s % p * s for p, s in digits), np.zeros_like(ranks))
                if len(np.unique(group[self._writes[ranks]])) < prod(p for p, _ in digits):
                    return True
        return False

    @cached_property
    def _block_size(self) -> int:
        """Smallest block size, at least `SMALLEST_BLOCK`, with equally many writers per block."""
        common = gcd(self.world_size, len(self.writers))
        for blocks in range(min(common, self.world_size // SMALLEST_BLOCK), 1, -1):
            if common % blocks == 0:
                counts = self._writes.reshape(blocks, -1).sum(axis=1)
                if (counts == counts[0]).all():
                    return self.world_size // blocks
        return self.world_size

    def _block(self, number: int) -> dict[int, WriteShare]:
        if number not in self._blocks:
            first = number * self._block_size
            held = {rank: self._held(rank) for rank in range(first, first + self._block_size)}
            self._blocks[number] = _routed(held, [r for r in held if self._writes[r]])
        return self._blocks[number]


def _laid_out(
    chunks: Iterable[TensorChunk], overhead: Overhead
) -> Iterator[tuple[TensorChunk, int, int]]:
    """Yield the chunks of a file, each with its offset and its length."""
    end = 0
    for chunk in chunks:
        start = end + -end % ALIGNED
        length = chunk.bytes + overhead(chunk.dtype, chunk.sizes)
        yield chunk, start, length
        end = start + length


def _shared_out(
    tensors: Sequence[DividedTensor], sizes: Mapping[DividedKind, Sizes], count: int
) -> dict[str, int]:
    """Return by tensor the candidate, from 0 to `count - 1`, that writes or sends its chunk."""
    chosen: dict[str, int] = {}
    sized = []
    bytes_of = {kind: _bytes(kind, of_chunk) for kind, of_chunk in sizes.items()}
    for tensor in tensors:
        kind = tensor.kind
        if not kind.shape:
            chosen[tensor.name] = 0
        elif size := bytes_of[kind]:
            sized.append((-size, tensor.name))
    loads = [(0, candidate) for candidate in range(count)]  # an ascending list is a valid heap
    for size, name in sorted(sized):
        load, candidate = loads[0]
        chosen[name] = candidate
        heapq.heapreplace(loads, (load - size + WEIGHT, candidate))
    return chosen


def _routed(
    held: Mapping[int, Sequence[TensorChunk]], writers: Sequence[int]
) -> dict[int, WriteShare]:
    """Return the write shares of a block's ranks; only some of the ranks write."""
    loads = [(sum(map(_weight, held[writer])), writer) for writer in writers]
    heapq.heapify(loads)
    received: dict[int, list[tuple[TensorChunk, int]]] = {rank: [] for rank in held}
    sends: dict[int, list[tuple[TensorChunk, int]]] = {rank: [] for rank in held}
    others = [(chunk, rank) for rank in held.keys() - set(writers) for chunk in held[rank]]
    # All ranks of the block use the same order, so that no two ranks wait for each other.
    for chunk, rank in sorted(others, key=lambda c: (-_weight(c[0]), c[1], c[0].name)):
        load, writer = heapq.heappop(loads)
        received[writer].append((chunk, rank))
        sends[rank].append((chunk, writer))
        heapq.heappush(loads, (load + _weight(chunk), writer))
    return {
        rank: WriteShare(
            own=tuple(chunks) if rank in writers else (),
            received=tuple(received[rank]),
            sends=tuple(sends[rank]),
        )
        for rank, chunks in held.items()
    }


def _weight(chunk: TensorChunk) -> int:
    return chunk.bytes + WEIGHT


def _bytes(kind: DividedKind, sizes: Sizes) -> int:
    return prod(sizes) * itemsize(kind.dtype)
