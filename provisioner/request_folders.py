"""Folders of requests: the pilots' join secrets, and a lock against concurrent calls.

```
<state_dir>/sources/<name>/token                    token of the source, 0600
<state_dir>/sources/<name>/requests/<id>/secrets    one join secret per line, by index; 0600
<state_dir>/sources/<name>/requests/<id>/submitted  created before the first call to the engine
<state_dir>/sources/<name>/requests/<id>.lock       locked while a call for the request runs
```
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from trainyard.base.ids import is_id
from trainyard.run.atomic import create_file, sync_folder

KEPT_SECONDS = 86_400.0
"""Time, in seconds, for which a folder is kept after the last complete listing that contained its
job."""


class Busy(Exception):  # noqa: N818 - a condition, not a mistake
    """Another call for the same request runs."""


class RequestFolders:
    """The folders for all requests to one source."""

    def __init__(self, folder: Path) -> None:
        """Create the folder for the source, with mode 0700."""
        self._folder = folder / "requests"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self, request_id: str) -> Iterator[None]:
        """Hold the lock for a request while the block runs.

        The call does not wait for the lock. A submission may hold the lock for an hour, and waiting
        would block a process of the provisioner for that time. The server repeats its calls.

        Raises:
            Busy: another call holds the lock.
        """
        path = self._folder / f"{request_id}.lock"
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise Busy(f"another call for request {request_id} runs") from error
                if not _is_file(fd, path):  # the sweep has removed the file meanwhile
                    continue
                yield
                return
            finally:
                os.close(fd)

    def secrets(self, request_id: str, *, count: int) -> Path:
        """Return the file of a request's join secrets; the first call generates the secrets.

        The content of the file never changes, because the server has the hashes, and pilots may
        have the secrets.
        """
        folder = self._folder / request_id
        folder.mkdir(mode=0o700, exist_ok=True)
        os.utime(folder)  # the sweep keeps recently claimed requests, even without a job
        path = folder / "secrets"
        if not path.exists():
            drawn = "".join(f"ty_pilot_{secrets.token_urlsafe(32)}\n" for _ in range(count))
            create_file(path, drawn, mode=0o600)
            sync_folder(folder)
            sync_folder(self._folder)
        return path

    def note_submission(self, request_id: str) -> None:
        """Record that the engine may have a job for the request; call this before the call to the
        engine."""
        folder = self._folder / request_id
        create_file(folder / "submitted", b"", mode=0o600)
        sync_folder(folder)

    def has(self, request_id: str) -> bool:
        """Return whether a call from this folder may have submitted the request to the engine."""
        return (self._folder / request_id / "submitted").exists()

    def was_never_submitted(self, request_id: str) -> bool:
        """Return whether it is certain that a request has no job at the engine.

        Call this under the lock for the request. The result is also False if nothing is known of
        the request: its folder may have been lost, or another provisioner may have submitted it.
        """
        folder = self._folder / request_id
        return (folder / "secrets").exists() and not (folder / "submitted").exists()

    def sweep(self, listed: Collection[str]) -> None:
        """Remove folders whose jobs were in no complete listing for a day.

        Args:
            listed: ids of the requests that have a job at the engine; their folders are kept.
        """
        for folder in self._folder.iterdir():
            if not is_id(folder.name):
                continue
            if folder.name in listed:
                os.utime(folder)
            elif folder.stat().st_mtime < time.time() - KEPT_SECONDS:
                with contextlib.suppress(Busy), self.locked(folder.name):
                    shutil.rmtree(folder, ignore_errors=True)
                    (self._folder / f"{folder.name}.lock").unlink(missing_ok=True)


def _is_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def hashes(path: Path) -> tuple[str, ...]:
    """Return the SHA-256 of each secret in a file, in hexadecimal."""
    lines = path.read_text(encoding="ascii").splitlines()
    return tuple(hashlib.sha256(line.encode()).hexdigest() for line in lines)
