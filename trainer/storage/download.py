"""An object that is read forwards; what comes next is fetched before it is asked for."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from types import TracebackType

from trainer.storage import s3_client

FIRST = 2**20
LARGEST = 16 * 2**20
"""Bytes of a span; each is twice as long as the one before, since who reads on will read on."""
AHEAD = 4
"""Spans that are on their way at once; so many are in memory too."""


class Download:
    """Reads spans of an object; a jump drops what was fetched ahead."""

    def __init__(self, bucket: str, key: str, *, name: str, size: int) -> None:
        """Begin to fetch an object.

        Args:
            bucket: its bucket.
            key: its name there.
            name: its URL, for errors.
            size: its bytes.
        """
        self._bucket, self._key, self._name = bucket, key, name
        self._size = size
        self._at = 0
        self._here = memoryview(b"")
        self._ahead: deque[Future[bytes]] = deque()
        self._jump(0)

    def readinto(self, memory: memoryview) -> int:
        """Fill memory from the start and return how many bytes there were; 0 at the end.

        Raises:
            OSError: the object store refuses, or breaks off again and again.
        """
        if not self._here and not self._take():
            return 0
        count = min(len(memory), len(self._here))
        memory[:count] = self._here[:count]
        self._here = self._here[count:]
        self._at += count
        return count

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, fewer only at the end; `OSError` as `readinto`."""
        content = bytearray(min(size, self._size - self._at))
        left = memoryview(content)
        while left and (count := self.readinto(left)):
            left = left[count:]
        return bytes(content)

    def seek(self, offset: int) -> int:
        """Go on at another place; what was fetched ahead is of use when it lies there."""
        while self._at + len(self._here) < offset < self._next:
            self._at += len(self._here)
            self._take()
        if self._at <= offset <= self._at + len(self._here):
            self._here = self._here[offset - self._at :]
        else:
            self._jump(offset)
        self._at = offset
        return offset

    def close(self) -> None:
        """Ask for nothing any more."""
        for begun in self._ahead:
            begun.cancel()
        self._ahead.clear()

    def __enter__(self) -> Download:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _jump(self, offset: int) -> None:
        self.close()
        self._here = memoryview(b"")
        self._next = offset
        self._span = FIRST
        self._most = 1

    def _take(self) -> bool:
        """Take the next span, and ask for more behind it; say whether there was one."""
        self._ask()
        if not self._ahead:
            return False
        self._here = memoryview(s3_client.wait(self._ahead.popleft(), self._name))
        self._span = min(2 * self._span, LARGEST)
        self._most = min(self._most + 1, AHEAD)
        if self._most > 2:  # the first span may be all that is wanted here
            self._ask()
        return True

    def _ask(self) -> None:
        while len(self._ahead) < self._most and self._next < self._size:
            end = min(self._next + self._span, self._size)
            self._ahead.append(
                s3_client.begin_reading(self._bucket, self._key, start=self._next, end=end)
            )
            self._next = end
