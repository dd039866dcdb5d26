"""What `torch.save` writes before and after the numbers of a tensor, so that these go directly."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, NamedTuple, cast

import numpy as np
import torch


class TensorFrame(NamedTuple):
    """`head + numbers + tail` is the file that `torch.save` writes of a tensor."""

    head: bytes
    tail: bytes


@lru_cache(maxsize=65_536)
def frame_of(dtype: torch.dtype, shape: torch.Size) -> TensorFrame:
    """Return the frame of a contiguous tensor, the same for all of its type and shape.

    It is taken from `torch.save` itself, of a tensor whose memory is reserved and never touched.
    """
    tensor = torch.empty(shape, dtype=dtype)
    recorder = _Recorder(tensor)
    with without_zip_checksums():
        torch.save(tensor, cast(IO[bytes], recorder))
    assert recorder.numbers == tensor.nbytes, "torch.save writes a tensor's memory as it lies"
    return TensorFrame(bytes(recorder.head), bytes(recorder.tail))


@contextmanager
def without_zip_checksums() -> Iterator[None]:
    """Leave out the CRC-32 of `torch.save`: with it a save takes twice as long."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


class _Recorder(io.IOBase):
    """A file that keeps what is written, but for the tensor's own memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._start = tensor.data_ptr()
        self._end = self._start + tensor.nbytes
        self.head, self.tail = bytearray(), bytearray()
        self.numbers = 0

    def write(self, data: memoryview) -> int:
        address = np.frombuffer(data, np.uint8).ctypes.data if data.nbytes else 0
        if self._start <= address < self._end:
            self.numbers += data.nbytes
        elif self.numbers:
            self.tail += data
        else:
            self.head += data
        return data.nbytes

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return len(self.head) + self.numbers + len(self.tail)
