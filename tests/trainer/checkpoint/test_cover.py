"""The chunks of each tensor must cover it exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from trainer.checkpoint.reader.metadata import check_cover
from trainer.errors import CheckpointError

PATH = Path("here/.metadata")
Box = tuple[tuple[int, ...], tuple[int, ...]]


def metadata_of(size: tuple[int, ...], *boxes: Box, unstored: int | None = None) -> Metadata:
    chunks = [ChunkStorageMetadata(torch.Size(o), torch.Size(s)) for o, s in boxes]
    entry = TensorStorageMetadata(
        TensorProperties(dtype=torch.float32), torch.Size(size), list(chunks)
    )
    place = _StorageInfo("__0_0.distcp", 0, 0)
    stored = {
        MetadataIndex(name, chunk.offsets): place
        for name in ("w", "v")
        for index, chunk in enumerate(chunks)
        if index != unstored or name == "w"
    }
    known: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {
        "w": entry,
        "v": entry,
        "object": BytesStorageMetadata(),
    }
    return Metadata(state_dict_metadata=known, storage_data=stored)


@pytest.mark.parametrize(
    ("size", "boxes"),
    [
        ((), [((), ())]),
        ((5,), [((0,), (5,))]),
        ((5,), [((3,), (2,)), ((0,), (3,))]),
        ((5,), [((0,), (5,)), ((5,), (0,))]),  # an uneven shard may be empty
        ((4, 6), [((0, 0), (2, 6)), ((2, 0), (2, 3)), ((2, 3), (2, 3))]),
        ((2, 2), [((r, c), (1, 1)) for r in range(2) for c in range(2)]),
        ((0, 3), [((0, 0), (0, 3))]),
    ],
)
def test_chunks_that_make_up_a_tensor_pass(size: tuple[int, ...], boxes: list[Box]) -> None:
    check_cover(metadata_of(size, *boxes), PATH)


@pytest.mark.parametrize(
    ("size", "boxes", "words"),
    [
        ((5,), [], "5 elements, but its chunks hold 0"),
        ((5,), [((0,), (4,))], "its chunks hold 4"),
        ((5,), [((0,), (3,)), ((4,), (1,))], "its chunks hold 4"),
        ((4,), [((0,), (2,)), ((0,), (2,))], "two of its chunks overlap"),
        ((4,), [((0,), (2,)), ((1,), (2,))], "two of its chunks overlap"),
        ((4, 4), [((0, 0), (2, 4)), ((2, 0), (2, 2)), ((1, 2), (2, 2))], "two of its chunks"),
        ((5,), [((1,), (5,))], "a chunk lies outside of it"),
        ((5,), [((-1,), (5,))], "a chunk lies outside of it"),
        ((5,), [((0, 0), (5, 1))], r"a chunk has other dimensions than \(5,\)"),
        ((), [], "1 elements, but its chunks hold 0"),
        ((), [((), ()), ((), ())], "two of its chunks overlap"),
    ],
)
def test_others_are_refused_by_name(size: tuple[int, ...], boxes: list[Box], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as refused:
        check_cover(metadata_of(size, *boxes), PATH)
    assert str(refused.value).startswith("here/.metadata: w has ")
    assert refused.value.fault == "tensor_incomplete"


def test_a_chunk_that_is_stored_nowhere_is_refused() -> None:
    boxes: list[Box] = [((0,), (3,)), ((3,), (2,))]
    with pytest.raises(CheckpointError, match=r"v has 5 .*its chunk at \(3,\) is stored nowhere"):
        check_cover(metadata_of((5,), *boxes, unstored=1), PATH)
