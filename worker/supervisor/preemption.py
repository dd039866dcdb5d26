"""Reads notices that announce the end of this machine, and signals the supervisors to leave."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from worker.node.node_store import NodeStore, identity_of
from worker.node.process_identity import open_process

LONGEST = 200
"""Maximum number of a notice's characters in reports."""
END = "end"
"""Second line of a notice that lets processes run until the end of the allocation."""


def read_notice(files: Sequence[Path]) -> str | None:
    """Return the first line of the first file that exists; None if no file exists.

    Only people read the content, so an empty file is a notice too.
    """
    for path in files:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                line = file.readline(LONGEST)
        except FileNotFoundError:
            continue
        except OSError:  # an existing but unreadable file counts as a notice
            line = ""
        said = "".join(character for character in line if character.isprintable()).strip()
        return said or f"{path.name} appeared"
    return None


def read_deadline(
    files: Sequence[Path], *, usual_seconds: float | None, end: float | None
) -> float | None:
    """Return the Unix time at which a notice ends the processes; None without a deadline.

    The first of `files` that exists is the notice. Its second line holds the time, or the word
    `end` for the end of the allocation. Without a valid second line, the result is `usual_seconds`
    from now.

    Args:
        files: as for `read_notice`.
        usual_seconds: time after a notice without a second line, in seconds; if None, such a notice
            sets no deadline.
        end: end of the node's allocation in Unix time; None if unknown.
    """
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            continue
        except OSError:
            lines = []
        second = lines[1].strip() if len(lines) > 1 else ""
        if second == END:
            return end
        with contextlib.suppress(ValueError):
            deadline = float(second)
            if math.isfinite(deadline):
                return deadline
        return None if usual_seconds is None else time.time() + usual_seconds
    return None


def signal_supervisors(node: NodeStore) -> int:
    """Send SIGTERM to all supervisors, which then save and leave; return their number.

    Call this until it returns 0, because a launch in progress may start another supervisor.
    """
    signalled = 0
    for attempt_id in node.live():
        run = node.run_of(attempt_id)
        identity = identity_of(run) if run else None
        pidfd = open_process(identity) if identity else None
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            os.close(pidfd)
            signalled += 1
    return signalled
