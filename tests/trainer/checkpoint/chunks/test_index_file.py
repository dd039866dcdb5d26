"""The place of each chunk follows from `index.json`; a damaged or planted one is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.checkpoint.chunks.states import stages_of
from trainer.checkpoint.chunks import divided_tensor
from trainer.checkpoint.chunks.dcp_metadata import chunk_count, dcp_metadata
from trainer.checkpoint.chunks.divided_tensor import DividedKind, DividedTensor, Division
from trainer.checkpoint.chunks.index_file import (
    ChunkIndex,
    file_name,
    index_of,
    parse_index,
    rank_of_file,
)
from trainer.checkpoint.manifest import WHOLE
from trainer.checkpoint.reader.metadata import read_metadata
from trainer.checkpoint.reader.stored_tensors import TensorsOfIndex, TensorsOfMetadata
from trainer.errors import CheckpointError
from trainyard.protocol.manifest import ManifestFile
from trainyard.spec.layout import Layout

PATH = Path("here")
LAYOUTS = [
    Layout(dp_shard=3),
    Layout(dp_replicate=2, dp_shard=2, tp=2),
    Layout(dp_replicate=2, cp=2, pp=2),
]
LAYOUT = LAYOUTS[1]


def _index(layout: Layout, writers: range | None = None) -> ChunkIndex:
    ranks = range(layout.world_size)
    return index_of(stages_of(layout), world_size=len(ranks), writers=writers or ranks)


def _files(index: ChunkIndex) -> list[ManifestFile]:
    return [
        ManifestFile(path=file_name(rank), size=size, xxh3_128="")
        for rank in range(index.ownership.world_size)
        if (size := index.file_size(rank))
    ]


@pytest.mark.parametrize("writers", [None, range(1)], ids=["all", "one"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_both_indexes_have_each_chunk_at_the_same_place(
    layout: Layout, writers: range | None
) -> None:
    saved = _index(layout, writers)
    content = saved.to_bytes()
    index = parse_index(content, layout)
    assert index.to_bytes() == content
    read = TensorsOfIndex(index, PATH)
    dcp = TensorsOfMetadata(read_metadata(dcp_metadata(saved), PATH), PATH)
    assert read.kinds == dcp.kinds
    for stored in (read, dcp):
        stored.check(_files(saved), WHOLE)  # every number is stored once, inside of the files
    count = 0
    for name, kind in read.kinds.items():
        assert kind is not None
        # All numbers, and those of a slice in the middle.
        for share in (1, 3):
            low = (
                tuple(size // share for size in kind.shape) if share > 1 else (0,) * len(kind.shape)
            )
            sizes = tuple(-(-size // share) for size in kind.shape)
            found = sorted(read.chunks(name, low, sizes))
            assert found == sorted(dcp.chunks(name, low, sizes))
            count += len(found) if share == 1 else 0
    assert count <= chunk_count(index) < 2 * count


def test_tensors_of_one_shape_may_be_divided_in_two_ways() -> None:
    kinds = [DividedKind("float32", (8, 8), (Division(dim, 2, 1),)) for dim in (0, 1)]
    tensors = [DividedTensor(str(dim), kind) for dim, kind in enumerate(kinds)]
    index = index_of([tensors], world_size=2, writers=[0, 1])
    upper = [[chunk[3:] for chunk in index.overlapping(n, (0, 0), (4, 8))] for n in ("0", "1")]
    assert upper == [[((0, 0), (4, 8))], [((0, 0), (8, 4)), ((0, 4), (8, 4))]]


def test_its_size_does_not_grow_with_the_ranks_that_hold_chunks() -> None:
    few, many = (len(_index(Layout(dp_shard=ranks), range(1)).to_bytes()) for ranks in (16, 4096))
    assert many < 1.1 * few


def _set(*path: str | int, to: object) -> Callable[[Any], None]:
    def change(record: Any) -> None:
        *parents, last = path
        for key in parents:
            record = record[key]
        record[last] = to

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("version", to=2), "version: Input should be 1"),
        (_set("surprise", to=1), "surprise: Extra inputs are not permitted"),
        (_set("world_size", to=2**40), "world_size: Input should be less than"),
        (_set("world_size", to=4), "it is of 4 ranks in 1 stages, not HSDP 2x2 x TP 2"),
        (_set("stages", to=[]), "stages: Tuple should have at least 1 item"),
        (_set("writers", to=[]), "no ascending list of ranks below 8"),
        (_set("writers", to=[1, 0]), "no ascending list of ranks below 8"),
        (_set("writers", to=[8]), "no ascending list of ranks below 8"),
        (_set("kinds", 0, "dtype", to="object"), "'object' is no type of numbers"),
        (_set("kinds", 0, "shape", to=[-1, 2]), "kinds/0/shape/0: Input should be greater"),
        (_set("kinds", 0, "divisions", to=[[2, 2, 1]]), "a division of a dimension that"),
        (_set("kinds", 0, "divisions", to=[[0, 3, 1]]), "divide no 8 ranks"),
        (_set("kinds", 0, "divisions", to=[[0, 2, 1], [1, 2, 1]]), "divide no 8 ranks"),
        (_set("kinds", 0, "divisions", to=[[0, 2, 8]]), "divide no 8 ranks"),
        (_set("kinds", 0, "divisions", to=[[0, 0, 1]]), "kinds/0/divisions/0/1: Input should"),
        (_set("kinds", 0, "overheads", to=[]), "no overhead of float32"),
        (_set("stages", 0, 0, 1, to=9), "a tensor has none of the kinds"),
        (_set("stages", 0, 0, 0, to="9"), "the names are not ascending"),
    ],
)
def test_a_planted_index_is_refused(change: Callable[[Any], None], words: str) -> None:
    record = json.loads(_index(LAYOUT).to_bytes())
    change(record)
    with pytest.raises(ValueError, match=words):
        parse_index(json.dumps(record).encode(), LAYOUT)


def test_an_index_of_a_million_chunks_is_checked_without_listing_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(divided_tensor, "_parts_of", pytest.fail)
    ranks = 2**16
    record = json.loads(_index(Layout(dp_shard=2)).to_bytes())
    record |= {"world_size": ranks, "writers": [0], "stages": [[]]}
    record["kinds"] = [
        {
            "dtype": "float32",
            "shape": [rows * ranks + 1],
            "divisions": [[0, ranks, 1]],
            "overheads": [[[rows + 1], 500], [[(rows * ranks + 1) % (rows + 1)], 500]],
        }
        for rows in range(2**20, 2**20 + 16)
    ]
    parse_index(json.dumps(record).encode(), Layout(dp_shard=ranks))


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
def test_damaged_bytes_raise_nothing_else(place: int, content: bytes) -> None:
    damaged = bytearray(_index(LAYOUT).to_bytes())
    start = place % len(damaged)
    damaged[start : start + len(content)] = content
    try:
        index = parse_index(bytes(damaged), LAYOUT)
    except ValueError:
        return
    assert index.ownership.world_size == LAYOUT.world_size


def test_a_file_of_another_length_or_rank_is_refused() -> None:
    index = _index(LAYOUT, range(4))
    files = _files(index)
    longer = files[1].model_copy(update={"size": files[1].size + 1})
    for file in (longer, ManifestFile(path=file_name(5), size=1, xxh3_128="")):
        with pytest.raises(CheckpointError, match=f"names a place that is not .* {file.path}"):
            TensorsOfIndex(index, PATH).check([files[0], file], WHOLE)


@pytest.mark.parametrize("name", ["__01_0.distcp", "__1_1.distcp", "__x_0.distcp", "index.json"])
def test_other_files_are_of_no_rank(name: str) -> None:
    assert rank_of_file(name) is None
    assert rank_of_file(file_name(12)) == 12
