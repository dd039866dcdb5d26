"""Has a process with bounds of its own unpack a pack: what a job brings is read nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from worker.launchers.pack_cache import no_space
from worker.launchers.pack_reader import DONE, MEMORY_BYTES, NO_SPACE, REFUSED
from worker.launchers.rank_environment import inherited_environment
from worker.node.users import RankUser

PROCESSOR_SECONDS = 60
"""Processor time, in seconds: 20,000 files of 512 MiB take 12 s of a busy core."""
LONGEST_SECONDS = 300.0
"""Wall time: a slow disk takes 512 MiB within it."""


def unpack(archive: Path, folder: Path, *, user: RankUser | None) -> None:
    """Write the files of a pack into a folder that is empty.

    Args:
        archive: a gzipped tar archive.
        folder: an empty folder, which no rank can enter yet.
        user: who gets the right to read the files, and to create others in the folders.

    Raises:
        PutBackError: the disk is full.
        ValueError: the archive is damaged, holds what is not legal, or costs too much to read.
    """
    reader = [sys.executable, "-P", "-m", "worker.launchers.pack_reader", str(PROCESSOR_SECONDS)]
    group = [] if user is None else [str(user.uid)]
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
        raise ValueError(f"code.pack: it is not unpacked after {LONGEST_SECONDS:.0f} s") from None
    reason = done.stdout.strip()[:1000]
    if done.returncode == DONE:
        return
    if done.returncode == NO_SPACE:
        raise no_space(folder, OSError(reason))
    if done.returncode != REFUSED:  # ended by a bound, or by what no bound foresees
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        reason = (
            f"it takes more than {PROCESSOR_SECONDS} s of a processor or "
            f"{MEMORY_BYTES // 2**20:,} MiB to read: {last[:500]}"
        )
    raise ValueError(f"code.pack: {reason}")
