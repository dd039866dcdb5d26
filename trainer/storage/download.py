"""Sequential reads of an object with read-ahead."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

from trainer.storage import s3_client

FIRST = 2**20
LARGEST = 16 * 2**20
"""`FIRST` is the size of the first request, `LARGEST` the maximum size, in bytes. While reads are
sequential, the size doubles after each span. So a short read fetches little extra, and a long read
needs few requests.
"""
AHEAD = 4
"""Maximum number of concurrent requests; their spans, and the one being read, are in memory."""


class Download:
    """Reads an object sequentially and prefetches spans; a seek outside these spans drops them."""

    def __init__(self, bucket: str, key: str, *, name: str, size: int) -> None:
        """Prepare to read from the start; the first read sends the first request.

        Args:
            bucket: bucket of the object.
            key: key of the object.
            name: URL of the object, for error messages.
            size: size of the object in bytes.
        """
        self._bucket, self._key, self._name = bucket, key, name
        self._size = size
        self._at = 0
        self._here = memoryview(b"")
        self._ahead: deque[Future[bytes]] = deque()
        self._jump(0)

    def readinto(self, memory: memoryview) -> int:
        """Read into the start of `memory`; return the number of bytes, or 0 at the end.

        Raises:
            OSError: the object store rejects the request, or all its responses break off.
        """
        if not self._here and not self._take():
            return 0
        count = min(len(memory), len(self._here))
        memory[:count] = self._here[:count]
        self._here = self._here[count:]
        self._at += count
        return count

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, fewer only at the end; raises `OSError` like `readinto`."""
        content = bytearray(min(size, self._size - self._at))
        left = memoryview(content)
        while left and (count := self.readinto(left)):
            left = left[count:]
        return bytes(content)

    def seek(self, offset: int) -> int:
        """Continue at `offset`; keep the fetched spans if it lies within; may raise `OSError`."""
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
        """Cancel the requests in progress."""
        for begun in self._ahead:
            begun.cancel()
        self._ahead.clear()

    def __enter__(self) -> Download:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _jump(self, offset: int) -> None:
        self.close()
        self._here = memoryview(b"")
        self._next = offset
        self._span = FIRST
        self._window = 1

    def _take(self) -> bool:
        """Wait for the next span and request further spans; return False at the end."""
        self._request()
        if not self._ahead:
            return False
        self._here = memoryview(s3_client.wait(self._ahead.popleft(), self._name))
        self._span = min(2 * self._span, LARGEST)
        self._window = min(self._window + 1, AHEAD)
        if self._window > 2:  # no read-ahead after the first span: many reads end in it
            self._request()
        return True

    def _request(self) -> None:
        while len(self._ahead) < self._window and self._next < self._size:
            end = min(self._next + self._span, self._size)
            self._ahead.append(
                s3_client.begin_reading(self._bucket, self._key, start=self._next, end=end)
            )
            self._next = end
