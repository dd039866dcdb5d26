"""Unpacks a pack in a separate, limited process; no other process reads a job's archive."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from worker.launchers.pack_cache import PutBackError, no_space
from worker.launchers.pack_reader import DONE, NO_SPACE, REFUSED
from worker.launchers.rank_environment import inherited_environment
from worker.node.users import RankUser

PROCESSOR_SECONDS = 60
"""Limit of processor time in seconds; 20,000 files with 512 MiB take 12 s of a busy core."""
LONGEST_SECONDS = 300.0
"""Limit of wall time in seconds; even a slow disk writes 512 MiB in less."""


def unpack(archive: Path, folder: Path, *, user: RankUser | None) -> None:
    """Write the files of a pack to an empty folder.

    Args:
        archive: a gzipped tar archive.
        folder: an empty folder that no rank can enter yet.
        user: user who may read the files and create further files in the folders.

    Raises:
        PutBackError: the disk is full, or another cause on the node ended the process.
        ValueError: the archive is damaged, holds an illegal entry, or takes too long to read.
    """
    reader = [sys.executable, "-P", "-m", "worker.launchers.pack_reader", str(PROCESSOR_SECONDS)]
    group = [] if user is None else [str(user.own)]
    try:
        done = subprocess.run(
            [*reader, str(archive), str(folder), *group],
            env=inherited_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _put_back(f"it is not unpacked after {LONGEST_SECONDS:.0f} s") from None
    except OSError as error:
        raise _put_back(f"no process could be started: {error.strerror or error}") from None
    reason = done.stdout.strip()[:1000]
    if done.returncode == DONE:
        return
    if done.returncode == NO_SPACE:
        raise no_space(folder, OSError(reason))
    if done.returncode == -signal.SIGXCPU:
        reason = f"it takes more than {PROCESSOR_SECONDS} s of a processor to read"
    elif done.returncode < 0:  # the system killed the process, for example without free memory
        raise _put_back(f"its reader was ended by signal {-done.returncode}")
    elif done.returncode != REFUSED:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        reason = f"it cannot be read: {last[:500]}"
    raise ValueError(f"code.pack: {reason}")


def _put_back(why: str) -> PutBackError:
    return PutBackError(f"code.pack: {why}", remedy="The next attempt unpacks it again.")
