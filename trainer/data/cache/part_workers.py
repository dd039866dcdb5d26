"""The processes that build the parts of a token cache."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.reduction import DupFd
from typing import Any, Self

from trainer.data.cache.part_files import PartFiles
from trainer.data.cache.producer import Producer
from trainer.errors import DataError

AHEAD = 4
"""Maximum number of started but unjoined parts per process; this limits the disk space of parts."""
POLL_SECONDS = 0.1


class Pool:
    """Builds parts in several processes, which end when this process ends.

    The processes are spawned, not forked. A fork would drop a rank's library threads, but keep the
    locks that they hold.
    """

    def __init__(
        self, producer: Producer, processes: int, *, lock_fd: int, on_progress: Callable[[], None]
    ) -> None:
        self.ahead = AHEAD * processes
        self._on_progress = on_progress
        self._running: dict[PartFiles, Future[None]] = {}
        self._sizes: list[int] = []
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(
            processes, context, initializer=_begin, initargs=(producer, _Inherited(lock_fd))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel queued parts; wait for running ones, which a restarted build can reuse."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        # `wait` alone would hang: a cancelled future counts as done only after the executor's
        # notification.
        while under_way := [f for f in self._running.values() if not f.done()]:
            wait(under_way, timeout=POLL_SECONDS)
            self._beat_if_grown()
        self._executor.shutdown(wait=True)

    def start(self, files: PartFiles, part: Any) -> None:
        """Build a part as soon as a process is free."""
        self._running[files] = self._executor.submit(_work, files, part)

    def wait(self, files: PartFiles) -> None:
        """Wait until a part is finished.

        Raises:
            DataError: the input is unreadable or damaged, or a process was killed.
            OSError: a file cannot be written.
        """
        future = self._running.get(files)
        if future is None:
            return  # an earlier build finished the part
        while not wait([future], timeout=POLL_SECONDS).done:
            self._beat_if_grown()
        del self._running[files]
        try:
            future.result()
        except BrokenProcessPool:
            raise DataError(
                "a process that tokenizes was killed, most likely because the node's memory was "
                "full: give the node more memory, or the job fewer cores"
            ) from None

    def _beat_if_grown(self) -> None:
        """Report progress only if a file has grown, so that a hang is detected."""
        sizes = [_size(files) for files in self._running]
        if sizes != self._sizes:
            self._sizes = sizes
            self._on_progress()


def _size(files: PartFiles) -> int:
    try:
        return files.tokens.stat().st_size
    except FileNotFoundError:
        return 0


class _Inherited:
    """A file descriptor that a spawned process inherits and keeps open until it ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __getstate__(self) -> Any:
        return DupFd(self._fd)

    def __setstate__(self, handle: Any) -> None:
        self._fd = handle.detach()


# ---- in a process of the pool -------------------------------------------------------------------

_state: dict[str, Any] = {}


def _begin(producer: Producer, lock: _Inherited) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process per core runs already
    _state.update(producer=producer, lock=lock)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(files: PartFiles, part: Any) -> None:
    producer: Producer = _state["producer"]
    files.write(producer.pieces(part), producer.limit, lambda: None)
