"""The position of this rank, written on request even while the main thread is blocked.

The supervisors collect the ranks' positions before they end a hanging attempt. The server then
finds the rank that did not arrive (docs/guards.md).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from trainer.metrics.flight_record import pending, receiving, recorded
from trainer.process import show_stacks_when_asked
from trainyard.run.directory import STACKS_SIGNAL, RunDirectory
from trainyard.run.record_files import replace_record
from trainyard.run.records import RankPosition

logger = logging.getLogger("trainer")

FOREIGN = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
"""Folders of Python and of installed packages; their frames explain nothing about a job."""
SHOWN_PARTS = 2
"""Number of path components shown in a position: folder and file."""


def write_position_when_asked(
    directory: RunDirectory, *, rank: int, step: Callable[[], int]
) -> None:
    """Write stacks and `RankPosition` at each `STACKS_SIGNAL`; call this in the main thread.

    A Python handler would run only after the main thread has left its collective. So a pipe passes
    the signal to a thread, which writes the position. faulthandler writes the stacks, because it
    needs no interpreter. If a thread never releases the interpreter's lock, only the position is
    missing.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(read_end, True)
    signal.signal(STACKS_SIGNAL, lambda _number, _frame: None)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    show_stacks_when_asked()
    main = threading.get_ident()

    def answer() -> None:
        while numbers := os.read(read_end, 64):
            if STACKS_SIGNAL in numbers:
                _write(directory, rank, step=step(), main=main)

    threading.Thread(target=answer, name="position", daemon=True).start()


def _write(directory: RunDirectory, rank: int, *, step: int, main: int) -> None:
    """Replace the position file of this rank; an error is logged and does not end training."""
    try:
        directory.positions.mkdir(exist_ok=True)
        position = RankPosition(
            rank=rank,
            time=time.time(),
            step=step,
            place=_place(main),
            collective=pending(recorded(nccl=True), recorded(nccl=False), receiving()),
        )
        replace_record(directory.position(rank), position)
    except Exception:
        logger.exception("the position of the rank could not be written")


def _place(main: int) -> str | None:
    """Return each thread's innermost frame in code of the job or the trainer, main thread first."""
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    places = [_innermost(frames.pop(main, None))]
    for ident, frame in frames.items():
        place = None if ident == threading.get_ident() else _innermost(frame)
        if place is not None:
            places.append(f"thread {names.get(ident, ident)}: {place}")
    return "; ".join(place for place in places if place) or None


def _innermost(frame: FrameType | None) -> str | None:
    """Return the innermost frame outside of Python and of installed packages."""
    own = next((one for one in _outwards(frame) if _is_own(one.f_code.co_filename)), None)
    if own is None:
        return None
    path = "/".join(Path(own.f_code.co_filename).parts[-SHOWN_PARTS:])
    return f"{path}:{own.f_lineno} in {own.f_code.co_name}"


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_own(path: str) -> bool:
    # The trainer may itself be an installed package.
    trainer = str(Path(__file__).parents[1])
    return path.startswith(trainer) or not path.startswith(("<", *FOREIGN))
