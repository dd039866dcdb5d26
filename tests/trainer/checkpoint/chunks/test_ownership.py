"""Each chunk has one writer, which every rank computes alone; the writers have even loads."""

from __future__ import annotations

import json
from collections import Counter, deque
from itertools import pairwise, product

import pytest

from tests.trainer.checkpoint.chunks.states import stages_of
from trainer.checkpoint.chunks.divided_tensor import TensorChunk
from trainer.checkpoint.chunks.ownership import ALIGNED, Ownership, WriteShare
from trainer.checkpoint.writer.save_plan import Writers, writing_ranks
from trainer.storage.io_errors import digest
from trainyard.spec.layout import Layout

LAYOUTS = [
    Layout(),
    Layout(dp_replicate=4),
    Layout(dp_shard=64),
    Layout(dp_replicate=3, dp_shard=2, tp=2),
    Layout(dp_replicate=2, dp_shard=2, cp=2, pp=2),
    Layout(dp_replicate=4, dp_shard=8, tp=2, pp=2),
]
WRITERS: list[Writers] = ["all", "one_replica", 1, 3, 4, 8]


def _ownership(layout: Layout, writers: Writers, *, layers: int = 3) -> Ownership:
    ranks = writing_ranks(writers, layout, shared=False)
    stages = stages_of(layout, layers=layers)
    return Ownership(stages, world_size=layout.world_size, writers=ranks)


CASES = [
    pytest.param(layout, writers, id=f"{layout}, {writers}")
    for layout, writers in product(LAYOUTS, WRITERS)
    if isinstance(writers, str) or writers <= layout.world_size
]


@pytest.mark.parametrize(("layout", "writers"), CASES)
def test_each_chunk_is_written_once_by_a_rank_that_gets_it(
    layout: Layout, writers: Writers
) -> None:
    ranks = range(layout.world_size)
    writing = set(writing_ranks(writers, layout, shared=False))
    # A new object for each rank, as in its process: the plans agree because the inputs do.
    shares = [_ownership(layout, writers).share(rank) for rank in ranks]
    kinds = _ownership(layout, writers).tensors
    written = Counter(chunk for share in shares for chunk in share.written)
    assert set(written.values()) == {1}
    for stage, tensors in enumerate(stages_of(layout)):
        size = layout.world_size // layout.pp
        for tensor in tensors:
            boxes = {tensor.kind.box_of(r) for r in range(stage * size, (stage + 1) * size)}
            chunks = {TensorChunk(tensor.name, "float32", *box) for box in boxes if 0 not in box[1]}
            assert chunks <= written.keys()
            written -= Counter(chunks)
    assert not +written
    for rank, share in enumerate(shares):
        assert rank in writing or not share.written
        for chunk in share.own:
            kind = kinds[chunk.name].kind
            assert (chunk.offsets, chunk.sizes) == kind.box_of(rank)
    _check_transfers(dict(enumerate(shares)))
    numbers = sum(chunk.bytes for share in shares for chunk in share.written)
    assert numbers == _ownership(layout, writers).numbers_bytes


def _check_transfers(shares: dict[int, WriteShare]) -> None:
    """Run all transfers, each when both ranks have reached it; none remains."""
    sends = {rank: deque(share.sends) for rank, share in shares.items()}
    receives = {rank: deque(share.received) for rank, share in shares.items()}
    while True:
        ready = [
            (rank, writer)
            for rank, queue in sends.items()
            if queue
            for chunk, writer in [queue[0]]
            if receives[writer] and receives[writer][0] == (chunk, rank)
        ]
        if not ready:
            break
        for rank, writer in ready:
            sends[rank].popleft()
            receives[writer].popleft()
    assert not any(sends.values())
    assert not any(receives.values())


@pytest.mark.parametrize(("layout", "writers"), CASES)
def test_a_chunk_is_found_where_its_writer_puts_it(layout: Layout, writers: Writers) -> None:
    # A reader starts from the divisions only.
    ownership, reader = _ownership(layout, writers), _ownership(layout, writers)
    for name, tensor in ownership.tensors.items():
        shape = tensor.kind.shape
        for parts in tensor.kind.overlapping((0,) * len(shape), shape):
            place = reader.place(tensor, parts, _overhead)
            assert place.offset % ALIGNED == 0
            places = ownership.places(place.writer, _overhead)
            assert places[name, tensor.kind.box_at(parts)[0]] == place
    for rank in range(layout.world_size):
        ends = sorted(ownership.places(rank, _overhead).values(), key=lambda place: place.offset)
        assert all(low.offset + low.length <= high.offset for low, high in pairwise(ends))
        size = ends[-1].offset + ends[-1].length if ends else 0
        assert reader.file_size(rank, _overhead) == size


def _overhead(_dtype: str, sizes: tuple[int, ...]) -> int:
    return 1000 + len(sizes)


def test_a_name_of_two_stages_is_found_in_a_file_of_the_first() -> None:
    layout = Layout(dp_replicate=2, dp_shard=4, pp=2)
    first, second = stages_of(layout)
    tied = next(tensor for tensor in first if tensor.kind.shape)
    stages = [first, sorted([*second, tied], key=lambda tensor: tensor.name)]
    writers = writing_ranks("all", layout, shared=False)
    ownership = Ownership(stages, world_size=16, writers=writers)
    for parts in tied.kind.overlapping((0, 0), tied.kind.shape):
        place = ownership.place(tied, parts, _overhead)
        assert place.writer < 8
        written = ownership.places(place.writer, _overhead)
        assert written[tied.name, tied.kind.box_at(parts)[0]] == place
    assert all(
        name != tied.name for r in range(8, 16) for name, _ in ownership.places(r, _overhead)
    )


@pytest.mark.parametrize(
    ("layout", "chunks", "laid_out"),
    [
        (Layout(dp_shard=64), 896, 56),  # 37 files of 2 forms: only the first has the scalars
        (Layout(dp_replicate=8, dp_shard=8), 200, 59),  # 64 files of 17 forms
    ],
    ids=str,
)
def test_files_with_chunks_of_the_same_sizes_are_laid_out_once(
    layout: Layout, chunks: int, laid_out: int
) -> None:
    ownership = _ownership(layout, "all", layers=8)
    seen: list[tuple[int, ...]] = []

    def overhead(_dtype: str, sizes: tuple[int, ...]) -> int:
        seen.append(sizes)
        return 1000

    places = [
        ownership.place(tensor, parts, overhead)
        for tensor in ownership.tensors.values()
        for shape in [tensor.kind.shape]
        for parts in tensor.kind.overlapping((0,) * len(shape), shape)
    ]
    assert (len(places), len(seen)) == (chunks, laid_out)


@pytest.mark.parametrize(
    ("layout", "writers"),
    [
        (Layout(dp_shard=64), "all"),
        (Layout(dp_replicate=8, dp_shard=8), "all"),
        (Layout(dp_replicate=4, dp_shard=4, tp=4), "all"),
        (Layout(dp_replicate=4, dp_shard=4, pp=4), "one_replica"),
        (Layout(dp_shard=64), 8),
        (Layout(dp_shard=64), 7),
        (Layout(dp_replicate=4, dp_shard=48), 6),
    ],
    ids=str,
)
def test_the_writers_have_even_loads(layout: Layout, writers: Writers) -> None:
    ranks = writing_ranks(writers, layout, shared=False)
    stages = stages_of(layout, layers=32, rows=768)
    ownership = Ownership(stages, world_size=layout.world_size, writers=ranks)
    loads = [sum(chunk.bytes for chunk in ownership.share(rank).written) for rank in ranks]
    assert max(loads) < 1.05 * sum(loads) / len(loads)


def test_writers_that_are_not_spread_evenly_share_out_all_chunks() -> None:
    """No save has such writers, but an index of another origin may."""
    layout = Layout(dp_shard=64)
    ownership = Ownership(stages_of(layout), world_size=64, writers=(0, 1))
    loads = [sum(chunk.bytes for chunk in ownership.share(rank).written) for rank in range(64)]
    assert sum(loads) == loads[0] + loads[1] == ownership.numbers_bytes


@pytest.mark.parametrize(
    ("layout", "writers", "layers", "expected"),
    [
        (Layout(dp_shard=64), "all", 3, "0f995e0e2e5c8a4f15d621d1fdb8d6d8"),
        (
            Layout(dp_replicate=4, dp_shard=8, tp=2, pp=2),
            "all",
            3,
            "22c6b52af2ddcbe5c8f76c881ffa96e4",
        ),
        (Layout(dp_replicate=3, dp_shard=2, tp=2), 5, 3, "dfc12c4ca672c4a6d5662c7c42fde688"),
        # Chunks that are sent, within two blocks of 48 ranks.
        (Layout(dp_replicate=3, dp_shard=32), 4, 9, "446c5c9f40b5c6c0f3d94c212dc2c628"),
        # Replicas divide chunks of sizes as different as the cost of a chunk.
        (Layout(dp_replicate=5, tp=2), "all", 9, "faff0e72f3f1c6f84a3cad153499e8e6"),
    ],
    ids=str,
)
def test_the_rule_by_which_files_are_read_does_not_change(
    layout: Layout, writers: Writers, layers: int, expected: str
) -> None:
    """Another digest makes every checkpoint of version 1 unreadable: see `INDEX_VERSION`."""
    ownership = _ownership(layout, writers, layers=layers)
    places = [
        [name, offsets, place]
        for rank in range(layout.world_size)
        for (name, offsets), place in ownership.places(rank, _overhead).items()
    ]
    assert digest(json.dumps(places).encode()) == expected
