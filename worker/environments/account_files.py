"""Reads of files that a job names, with the rights of its account instead of those of root."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from worker.node.process_tree import WRAPPER
from worker.node.users import RankUser

SECONDS = 60.0
OF_PYTHON = ("LD_LIBRARY_PATH", "PATH")
"""Variables that the script gets: other processes of the account read them all."""
READ = """
import os, stat, sys
base, limit, *folders, name = sys.argv[1:]
try:
    fd = os.open(base, os.O_PATH | os.O_DIRECTORY)
    for part in folders:  # O_PATH needs only the right to pass through a folder
        fd = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise PermissionError(1, "no regular file")
    sys.stdout.buffer.write(open(fd, "rb").read(int(limit) + 1))
except OSError as error:
    sys.exit(error.strerror)
"""
"""Script that does what `read_beneath` does."""


def read_as_account(user: RankUser, base: Path, parts: Sequence[str], *, limit: int) -> bytes:
    """Return the content of a file that the account may read; follow no links.

    Args:
        user: user of the account.
        base: a trusted folder.
        parts: names that lead from `base` to the file.
        limit: maximum size of the file, in bytes.

    Raises:
        OSError: the account cannot read the file, the file system does not respond, or the file is
            missing, not regular, behind a link, or larger than the limit.
    """
    command = [sys.executable, "-I", "-S", "-c", READ, str(base), str(limit), *parts]
    words = [*WRAPPER, "tie", str(os.getpid()), user.word, "--", *command]
    try:
        done = subprocess.run(
            words,
            env={name: os.environ[name] for name in OF_PYTHON if name in os.environ},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer in {SECONDS:.0f} s") from None
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        raise OSError(errno.EACCES, why[-1], parts[-1])
    if len(done.stdout) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), parts[-1])
    return done.stdout
