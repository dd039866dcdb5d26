"""Shards on their way to the ranks that write them, piece by piece, under a ceiling of memory."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

LARGEST_PIECE = 64 * 2**20
"""Bytes that travel at once, where the ceiling allows it."""
BUFFERS = 4
"""Pieces that a writer holds: one arrives while another one is written and two are hashed."""
TAG = 3


def piece_bytes(ceiling: int) -> int:
    """Return the bytes of a piece, so that a writer's buffers stay below a ceiling, in bytes."""
    return max(1, min(LARGEST_PIECE, ceiling // BUFFERS))


def byte_view(tensor: Tensor) -> Tensor:
    """Return the memory of a contiguous CPU tensor as bytes, uint8 `[n]`."""
    return tensor.reshape(-1).view(torch.uint8)


def memory_of(bytes_: Tensor) -> memoryview:
    """Return the memory of bytes, uint8 `[n]`, to be written from or read into."""
    return memoryview(cast(Any, bytes_.numpy()))


def send(
    sends: Sequence[tuple[Callable[[], Tensor], int, int]],
    *,
    piece: int,
    group: dist.ProcessGroup,
) -> None:
    """Send tensors to their writers, in order.

    Whatever fails here, the writer gets its bytes: it waits for them, and would for ever.

    Args:
        sends: for each, how to get it (a contiguous CPU tensor), its size in bytes and its writer.
        piece: bytes at once; the same on both ends.
        group: CPU group of all ranks.
    """
    failure: Exception | None = None
    for get, size, writer in sends:
        content: Tensor | None = None
        try:
            content = byte_view(get()) if failure is None else None
        except Exception as error:  # noqa: BLE001 -- raised below, when nobody waits any more
            failure = error
        for start in range(0, size, piece):
            length = min(piece, size - start)
            if content is None:
                part = torch.zeros(length, dtype=torch.uint8)
            else:
                part = content[start : start + length]
            dist.send(part, group_dst=writer, group=group, tag=TAG)
    if failure is not None:
        raise failure


class Receiver:
    """Receives tensors in the order in which the ranks send them; one piece is always under way.

    All memory that it takes is allocated here, and is `BUFFERS` pieces.
    """

    def __init__(
        self, expected: Sequence[tuple[int, int]], *, piece: int, group: dist.ProcessGroup
    ) -> None:
        """Begin to receive.

        Args:
            expected: for each tensor its size in bytes and the rank that sends it.
            piece: bytes at once.
            group: CPU group of all ranks.
        """
        self._group = group
        self._parts = deque(
            (min(piece, size - start), source)
            for size, source in expected
            for start in range(0, size, piece)
        )
        largest = max((size for size, _ in self._parts), default=0)
        self.memory = BUFFERS * largest
        """Bytes of its buffers."""
        self._free: queue.Queue[Tensor] = queue.Queue()
        for _ in range(BUFFERS):
            self._free.put(torch.empty(largest, dtype=torch.uint8))
        self._under_way: deque[tuple[dist.Work, Tensor, int]] = deque()
        self._post()

    def pieces(self, size: int) -> Iterator[tuple[memoryview, Callable[[], None]]]:
        """Yield the next tensor's bytes, and for each piece what to call when it was used."""
        while size > 0:
            work, buffer, length = self._under_way.popleft()
            work.wait()
            size -= length
            self._post()

            def release(buffer: Tensor = buffer) -> None:
                self._free.put(buffer)

            yield memory_of(buffer[:length]), release

    def drain(self) -> None:
        """Take in what is still to come, and drop it: who sends it would wait for ever."""
        while self._under_way:
            work, buffer, _ = self._under_way.popleft()
            work.wait()
            self._free.put(buffer)
            self._post()

    def _post(self) -> None:
        if self._parts and not self._under_way:
            size, source = self._parts.popleft()
            buffer = self._free.get()
            work = dist.irecv(buffer[:size], group_src=source, group=self._group, tag=TAG)
            assert work is not None
            self._under_way.append((work, buffer, size))
