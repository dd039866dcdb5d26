"""Runs a function in a child process, where changes to memory have no consequences."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

LONGEST_SECONDS = 120.0


def in_child(run: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Run `run` in a fork of this process; return its result, or None if it gives none in 120 s.

    The child has only one thread. Code that waits for another thread blocks until the child is
    killed.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():  # Python 3.12 warns about forks with threads
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os.close(reading)
            torch.set_num_threads(1)  # OpenMP's other threads do not exist in the child
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(json.dumps(run()).encode())
        os._exit(0)
    os.close(writing)
    try:
        return _answer(reading)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _answer(reading: int) -> dict[str, Any] | None:
    content, until = b"", time.monotonic() + LONGEST_SECONDS
    while select.select([reading], [], [], max(until - time.monotonic(), 0))[0]:
        part = os.read(reading, 65536)
        if not part:
            break
        content += part
    try:
        found: dict[str, Any] = json.loads(content)
    except ValueError:  # the child died or timed out
        return None
    return found
