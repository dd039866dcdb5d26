"""A file that is hashed during its write, and the frames around a tensor in it."""

import io
from functools import partial
from pathlib import Path

import pytest
import torch
import xxhash

from trainer.checkpoint.tensors import frame_of, without_zip_checksums
from trainer.checkpoint.writer import hashed_file
from trainer.checkpoint.writer.hashed_file import HashedFile
from trainer.errors import CheckpointError


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashed_file, "PIECE", 64)


def test_small_and_large_writes_come_out_in_order(tmp_path: Path) -> None:
    parts = [bytes([n % 256]) * (n * 7 % 200) for n in range(100)]
    released: list[int] = []
    with HashedFile(tmp_path / "x") as file:
        for number, part in enumerate(parts):
            before = file.size
            file.write(memoryview(part), release=partial(released.append, number))
            assert file.size == before + len(part)
        record = file.close()
    whole = b"".join(parts)
    assert (tmp_path / "x").read_bytes() == whole
    assert record.size == len(whole)
    assert record.xxh3_128 == xxhash.xxh3_128_hexdigest(whole)
    assert sorted(released) == list(range(100))


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(CheckpointError, match="File exists"):
        HashedFile(tmp_path / "x")
    assert (tmp_path / "x").read_text() == "mine"


def test_a_write_that_fails_leaves_no_thread_behind(tmp_path: Path) -> None:
    released = []
    with HashedFile(tmp_path / "x") as file:
        file._file.close()
        file._file = io.FileIO("/dev/full", "wb")
        with pytest.raises(CheckpointError, match="No space left"):
            file.write(bytes(1000), release=lambda: released.append(True))
    assert released == [True]
    assert not file._hashing.is_alive()


def test_a_buffer_is_released_if_earlier_small_writes_fail(tmp_path: Path) -> None:
    released = []
    with HashedFile(tmp_path / "x") as file:
        file.write(b"small")
        file._file.close()
        file._file = io.FileIO("/dev/full", "wb")
        with pytest.raises(CheckpointError, match="No space left"):
            file.write(bytes(1000), release=lambda: released.append(True))
    assert released == [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4), (1000, 300)])
def test_a_frame_is_what_torch_writes_around_a_tensor(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.rand(shape).to(dtype)
    written = io.BytesIO()
    with without_zip_checksums():
        torch.save(tensor, written)
    numbers = bytes(tensor.reshape(-1).view(torch.uint8).tolist())
    frame = frame_of(dtype, torch.Size(shape))
    assert frame.head + numbers + frame.tail == written.getvalue()
