"""The data folder of an embedded control plane: its paths, and its lock."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


def default_root() -> Path:
    """Return `~/.local/share/trainyard`, or `$XDG_DATA_HOME/trainyard` if the variable is set."""
    data_home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data_home) / "trainyard"


@dataclass(frozen=True)
class Folders:
    """Paths in the data folder."""

    root: Path

    @property
    def database(self) -> Path:
        """Path of the SQLite database."""
        return self.root / "trainyard.db"

    @property
    def state(self) -> Path:
        """Folder of the server's own files, such as its admin token, and of the user's token."""
        return self.root / "state"

    @property
    def admin_token(self) -> Path:
        """File of the admin token, which the server writes at its first start."""
        return self.state / "admin.token"

    @property
    def user_token(self) -> Path:
        """File of the user's API token, which the `trainyard` command sends."""
        return self.state / "user.token"

    @property
    def broker(self) -> Path:
        """Folder of the broker's configuration and append-only file."""
        return self.root / "broker"

    @property
    def node(self) -> Path:
        """Folder of this machine's worker: its run directories, caches and token."""
        return self.root / "node"

    @property
    def checkpoints(self) -> Path:
        """Folder of the storage root `checkpoints`."""
        return self.root / "checkpoints"

    @property
    def data(self) -> Path:
        """Folder of the storage root `data`."""
        return self.root / "data"

    @property
    def record(self) -> Path:
        """File that lists the running processes (`embedded.record.RunRecord`)."""
        return self.root / "run.json"

    def log(self, name: str) -> Path:
        """Return the log file of one process."""
        return self.root / "logs" / f"{name}.log"

    def make(self) -> None:
        """Create the missing folders.

        Only the owner can access a new root. An existing root keeps its mode, and only the mode of
        the root protects `checkpoints` and `data`.

        Raises:
            OSError: a folder cannot be created.
        """
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.state, self.broker, self.node, self.root / "logs"):
            folder.mkdir(exist_ok=True, mode=0o700)
        for folder in (self.checkpoints, self.data):
            folder.mkdir(exist_ok=True)

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Lock the folder while the block runs; yield whether the lock was free."""
        descriptor = os.open(self.root / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)
