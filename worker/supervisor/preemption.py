"""Notices that this machine is about to go away, and asking its supervisors to save and leave."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from worker.node.node_store import NodeStore, identity_of
from worker.node.process_identity import open_process

LONGEST = 200
"""Characters of a notice that are told."""


def read_notice(files: Sequence[Path]) -> str | None:
    """Return what the first of these files that is there says; None when none is.

    What is in a file is for people alone: an empty one is a notice as well.
    """
    for path in files:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                line = file.readline(LONGEST)
        except FileNotFoundError:
            continue
        except OSError:  # something is there, and that is what counts
            line = ""
        said = "".join(character for character in line if character.isprintable()).strip()
        return said or f"{path.name} appeared"
    return None


def ask_supervisors(node: NodeStore) -> int:
    """Ask every supervisor of the node to save and leave; return how many there are.

    Ask again and again: a launch that was under way may have brought one more.
    """
    pidfds = _supervisors(node)
    for pidfd in pidfds:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        os.close(pidfd)
    return len(pidfds)


def _supervisors(node: NodeStore) -> list[int]:
    pidfds = []
    for attempt_id in node.live():
        run = node.run_of(attempt_id)
        identity = identity_of(run) if run else None
        pidfd = open_process(identity) if identity else None
        if pidfd is not None:
            pidfds.append(pidfd)
    return pidfds
