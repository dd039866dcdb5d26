"""The id of a data folder, and the lock that lets only one worker serve the node.

```
<data_dir>/node.id      id of the folder, and the inode of this file: a copy has another inode
<data_dir>/worker.lock  locked by the running worker
```
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

from trainyard.protocol.worker_messages import WorkerIdentity
from worker.node.process_identity import boot_id

ID_FILE, LOCK_FILE = "node.id", "worker.lock"
ID_LINE = re.compile(rb"([0-9a-f]{32}) (\d+)\n")
WAIT_SECONDS = 15.0
"""Time, in seconds, for an earlier worker of the data folder to exit."""
POLL_SECONDS = 0.2


@contextlib.contextmanager
def lock_folder(data_dir: Path, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[WorkerIdentity]:
    """Hold the data folder while the block runs; yield the identity of this worker.

    The lock belongs to the process (`lockf`, not `flock`). So a Celery worker's children do not
    inherit the lock, and the lock is free once the worker has ended in any way. No other code may
    open the file, because a process loses the lock when it closes any descriptor of the file.

    Raises:
        ValueError: another worker holds the data folder.
    """
    path = data_dir / LOCK_FILE
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + wait_seconds
        while not _try_to_lock(fd):
            if time.monotonic() > deadline:
                pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
                raise ValueError(
                    f"TRAINYARD_DATA_DIR={data_dir}: another worker (pid {pid or 'unknown'}) "
                    "serves this folder; end it, or use another folder and another node name"
                )
            time.sleep(POLL_SECONDS)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        _make_id(data_dir / ID_FILE)
        yield worker_identity(data_dir)
    finally:
        os.close(fd)


def worker_identity(data_dir: Path) -> WorkerIdentity:
    """Return the identity of the worker that serves a data folder.

    Raises:
        FileNotFoundError: no worker has ever served the data folder.
        ValueError: the id of the folder is damaged.
    """
    path = data_dir / ID_FILE
    found = ID_LINE.fullmatch(path.read_bytes())
    if found is None:
        raise ValueError(f"{path} holds no id")
    return WorkerIdentity(folder=found[1].decode(), boot_id=boot_id())


def _try_to_lock(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows either error
        return False
    return True


def _make_id(path: Path) -> None:
    """Write an id for the folder if it lacks one; replace a copied or incomplete id."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        inode = os.fstat(fd).st_ino
        found = ID_LINE.fullmatch(os.pread(fd, 100, 0))
        if found is not None and int(found[2]) == inode:
            return
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{uuid4().hex} {inode}\n".encode(), 0)  # overwritten, so the inode stays
        os.fsync(fd)
    finally:
        os.close(fd)
