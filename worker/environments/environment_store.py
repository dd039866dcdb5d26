"""The environments of a storage root: finds, requests, publishes and removes them.

```
<root>/environments/<digest>/              an environment; only the worker's user can change it
<root>/environments/<digest>/environment.json    the size; the folder's time is the last use
<root>/environments/requests/<digest>.json       the BuildRequest, until it is built (0600)
<root>/environments/.<digest>.<random>.partial/  an environment during its build or removal
```
Ranks may write into the root, so entries of other owners are refused.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trainyard.base.model_base import RecordModel
from trainyard.run.atomic import TARGET_EXISTS, replace_file, sync_folder
from trainyard.spec.sections.program import ENVIRONMENTS
from worker.environments.build_request import BuildRequest
from worker.node.files import read_record
from worker.node.folder_usage import remove_tree

DIGEST = re.compile(r"[0-9a-f]{64}")
PARTIAL = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{16}\.partial")
USED_EVERY = 3600.0
"""Minimum time, in seconds, between two updates of an environment's time of last use."""
IN_USE_SECONDS = 3 * USED_EVERY
"""Time, in seconds, after its last use for which an environment is kept above the size limit."""
LEFT_SECONDS = 86_400.0
"""Age, in seconds, at which a request or the leftover of an interrupted build is removed."""
MAX_BYTES = 200 * 2**30
"""Maximum size, in bytes, of a single environment, and of all environments of a root together."""
MAX_ENTRIES = 2_000_000
OTHERS_WRITE = 0o022


class BuiltEnvironment(RecordModel):
    """`environment.json` of an environment."""

    size: int
    """Total size of the environment's files, in bytes."""


class EnvironmentStore:
    """The folder `environments` of one storage root."""

    def __init__(self, root: Path) -> None:
        """Set the folder, which need not exist."""
        self.folder = root / ENVIRONMENTS

    def prepare(self) -> None:
        """Create the folder, so that no rank can create one with this name first.

        An existing folder stays unchanged; `find` and `request` refuse another user's folder.

        Raises:
            OSError: the folder cannot be created, for example on read-only storage.
        """
        _make(self.folder, 0o755)

    def find(self, digest: str) -> Path | None:
        """Return an environment and update its last use; None if it is absent.

        Raises:
            ValueError: a user other than the worker's can change the environment.
        """
        path = self.folder / digest
        try:
            self._check_root()
            self._check(self.folder)
            self._check(path)
            self.touch(path)
            self._check(path)  # may be removed before `touch`, but not afterwards
        except FileNotFoundError:
            return None
        return path

    def touch(self, path: Path) -> None:
        """Update an environment's time of last use; on read-only storage, do nothing."""
        with suppress(OSError):
            os.utime(path)

    def request(self, request: BuildRequest) -> None:
        """Store a build request.

        Raises:
            OSError: the request cannot be written.
            ValueError: a user other than the worker's can change the folder.
        """
        self._check_root()
        _make(self.folder, 0o755)
        _make(self.folder / "requests", 0o700)
        self._check(self.folder)
        self._check(self.folder / "requests")
        replace_file(self._request(request.digest), request.text, mode=0o600)

    def read_request(self, digest: str) -> BuildRequest | None:
        """Return the request for a build, or None if the request is absent or damaged."""
        request = read_record(self._request(digest), BuildRequest)
        return request if request is not None and request.digest == digest else None

    def begin(self, digest: str) -> Path:
        """Return a new folder for a build, which only the worker's user can write to.

        Raises:
            OSError: the folder cannot be created.
        """
        partial = self._partial(digest)
        partial.mkdir(mode=0o700)
        return partial

    def publish(self, partial: Path, digest: str, *, most_bytes: int) -> int:
        """Move a build to its final place; return its size in bytes.

        Before this call, all processes of the build's user must have ended.

        Raises:
            OSError: the storage reports an error.
            ValueError: the build holds something other than files, folders and links, or is too
                large.
        """
        size = _seal(partial, group=self.folder.stat().st_gid, most_bytes=most_bytes)
        replace_file(partial / "environment.json", BuiltEnvironment(size=size).model_dump_json())
        sync_folder(partial)
        os.utime(partial)
        try:
            partial.rename(self.folder / digest)
        except OSError as error:
            if error.errno not in TARGET_EXISTS:
                raise
            remove_tree(partial)  # another build of the same digest was published first
        sync_folder(self.folder)
        self._request(digest).unlink(missing_ok=True)
        return size

    def clean(self, *, unused_days: float, most_bytes: int, now: float | None = None) -> list[str]:
        """Remove unused environments and old leftovers; above the size limit, also the
        least recently used environments.

        Args:
            unused_days: time since the last use, in days, after which an environment is removed.
            most_bytes: maximum size of all environments together, in bytes.
            now: the present Unix time, for tests.

        Returns:
            Digests of the removed environments.
        """
        now = time.time() if now is None else now
        found = sorted(self._environments())
        total = sum(size for _, size, _ in found)
        removed = []
        for used_at, size, path in found:
            idle = now - used_at
            unused = idle > unused_days * 86_400
            crowded = total > most_bytes and idle > IN_USE_SECONDS
            if (unused or crowded) and self._remove(path, used_at):
                removed.append(path.name)
                total -= size
        self._remove_leftovers(now)
        return removed

    def _environments(self) -> Iterator[tuple[float, int, Path]]:
        """Yield time of last use, size in bytes and folder of each environment."""
        for path in self.folder.iterdir():
            if DIGEST.fullmatch(path.name):
                with suppress(FileNotFoundError):
                    built = read_record(path / "environment.json", BuiltEnvironment)
                    yield path.lstat().st_mtime, built.size if built else 0, path

    def _remove(self, path: Path, used_at: float) -> bool:
        """Remove an environment that is not in use; return whether it was removed."""
        away = self._partial(path.name)
        with suppress(OSError):
            path.rename(away)  # the name first: a job then requests a build
            if away.lstat().st_mtime > used_at:
                away.rename(path)
                return False
            remove_tree(away)
            return True
        return False

    def _remove_leftovers(self, now: float) -> None:
        requests = self.folder / "requests"
        old = [path for path in self.folder.iterdir() if PARTIAL.fullmatch(path.name)]
        for path in [*old, *(requests.iterdir() if requests.is_dir() else ())]:
            with suppress(OSError):
                if now - path.lstat().st_mtime < LEFT_SECONDS:
                    continue
                if path in old:
                    remove_tree(path)
                else:
                    path.unlink()

    def _request(self, digest: str) -> Path:
        return self.folder / "requests" / f"{digest}.json"

    def _partial(self, digest: str) -> Path:
        return self.folder / f".{digest}.{secrets.token_hex(8)}.partial"

    def _check_root(self) -> None:
        """Refuse a root in which another user can replace the environments' folder."""
        root = self.folder.parent
        mode = root.stat().st_mode
        if mode & OTHERS_WRITE and not mode & stat.S_ISVTX:
            raise ValueError(
                f"{root} has mode {stat.filemode(mode)}: others can replace its folder "
                f"{ENVIRONMENTS}; legal: with the sticky bit (chmod +t {root}), or writable for "
                "its owner alone"
            )

    def _check(self, path: Path) -> None:
        found = path.lstat()
        mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if not mine or found.st_mode & OTHERS_WRITE:
            raise ValueError(
                f"{path} has to be a folder of the worker's user {os.geteuid()} that no other user "
                f"can change; it has owner {found.st_uid} and mode {stat.filemode(found.st_mode)}"
            )


def _make(folder: Path, mode: int) -> None:
    with suppress(FileExistsError):
        folder.mkdir(mode=mode)
        folder.chmod(mode)  # regardless of the umask


def _seal(partial: Path, *, group: int, most_bytes: int) -> int:
    """Make the worker the owner of a build and let all users read it; return its size in bytes.

    Before this call, the folder's mode excludes other users.
    """
    size = entries = 0
    for folder, folders, files in _walked(partial):
        _own(Path(folder), group)
        Path(folder).chmod(0o700 if folder == str(partial) else 0o755)
        for name in (*folders, *files):
            path = Path(folder, name)
            found = path.lstat()
            entries, size = entries + 1, size + found.st_size
            if entries > MAX_ENTRIES or size > most_bytes:
                raise ValueError(
                    f"it holds {entries:,} files of {size:,} bytes or more; legal: at most "
                    f"{MAX_ENTRIES:,} and {most_bytes:,}"
                )
            if stat.S_ISLNK(found.st_mode) or stat.S_ISDIR(found.st_mode):
                continue  # a link has no own mode; the walk also yields every folder
            # A hard link could refer to another job's file, and this code would change that file's
            # mode.
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise ValueError(f"{path} is neither a file of its own, a folder nor a link")
            _own(path, group)
            path.chmod(0o755 if found.st_mode & 0o100 else 0o644)
    partial.chmod(0o755)
    return size


def _walked(partial: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a build without following links; call this after the build's processes have ended.

    Raises:
        ValueError: the folders of the build are nested too deeply.
    """
    try:
        yield from os.walk(partial, followlinks=False)
    except RecursionError as error:
        raise ValueError("its folders are nested too deep") from error


def _own(path: Path, group: int) -> None:
    if path.stat().st_uid != os.geteuid():
        os.chown(path, os.geteuid(), group, follow_symlinks=False)
