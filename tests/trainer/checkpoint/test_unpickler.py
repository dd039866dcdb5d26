"""The unpickler of metadata accepts only what DCP writes."""

import os
import pickle
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from trainer.checkpoint.reader.metadata import read_metadata
from trainer.errors import CheckpointError

PATH = Path("somewhere/.metadata")
METADATA = Metadata(
    {
        f"model.{dtype}": TensorStorageMetadata(
            TensorProperties(dtype=dtype),
            torch.Size([4, 3]),
            [ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([4, 3]))],
        )
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fn)
    }
)


def test_what_dcp_writes_is_read() -> None:
    assert read_metadata(pickle.dumps(METADATA), PATH) == METADATA


class Calls:
    """Pickles as a call of something."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        (Calls(os.system, "exit 1"), ".system"),
        (Calls(eval, "1 + 1"), ".eval"),
        (Calls(getattr, "x", "upper"), ".getattr"),
        (Calls(torch.load, "x"), ".load"),
        (Calls(Path, "x"), ".Path"),
    ],
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_any_other_name_is_refused(planted: Calls, named: str, protocol: int) -> None:
    with pytest.raises(CheckpointError, match="is refused: it names") as caught:
        read_metadata(pickle.dumps(planted, protocol=protocol), PATH)
    assert str(caught.value).endswith(named)
    assert caught.value.path == str(PATH)


def test_a_dotted_name_reaches_nothing_behind_an_allowed_one() -> None:
    # STACK_GLOBAL may request attributes of attributes: os, through a module that imports it.
    content = b"\x80\x04\x8c\x25torch.distributed.checkpoint.metadata\x8c\x09os.system\x93."
    with pytest.raises(CheckpointError, match=r"names torch.distributed.checkpoint.metadata.os"):
        read_metadata(content, PATH)


@pytest.mark.parametrize("place", [2**20, 2**31, 2**32 - 1])
def test_a_place_in_the_memo_that_takes_all_memory_is_refused(place: int) -> None:
    usual = pickle.dumps(METADATA)
    content = usual[:-1] + b"r" + place.to_bytes(4, "little") + b"."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=f"is refused: LONG_BINPUT {place}"):
        read_metadata(content, PATH)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024, "KiB"


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_with_its_memo_is_read(protocol: int) -> None:
    assert read_metadata(pickle.dumps(METADATA, protocol=protocol), PATH) == METADATA


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
def test_damaged_bytes_raise_nothing_else(place: int, content: bytes) -> None:
    damaged = bytearray(pickle.dumps(METADATA))
    start = place % len(damaged)
    damaged[start : start + len(content)] = content
    try:
        found = read_metadata(bytes(damaged), PATH)
    except CheckpointError:
        return
    assert isinstance(found, Metadata)
