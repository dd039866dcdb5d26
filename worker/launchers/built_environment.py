"""Finds a lock's environment on the storage root, or requests a build."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from trainyard.spec.sections.program import CodeSection, EnvironmentSection
from trainyard.spec.storage_uri import is_object_store, split_place
from worker.environments.build_request import request_of
from worker.environments.environment_store import USED_EVERY, EnvironmentStore
from worker.launchers.base import Share


class MissingEnvironmentError(Exception):
    """The environment is not built yet."""

    remedy = "An operation builds it; the next attempt finds it there."

    def __init__(self, message: str, *, digest: str) -> None:
        super().__init__(message)
        self.digest = digest


class UsedEnvironment:
    """An environment in which an attempt runs."""

    def __init__(self, store: EnvironmentStore, path: Path) -> None:
        self.path = path
        self._store = store
        self._noted_at = time.monotonic()

    def note(self) -> None:
        """Update the environment's time of last use periodically, so that no build removes it."""
        if time.monotonic() - self._noted_at > USED_EVERY:
            self._noted_at = time.monotonic()
            self._store.touch(self.path)


def environment_of(
    share: Share,
    section: EnvironmentSection,
    *,
    code: CodeSection | None,
    roots: Mapping[str, str],
) -> UsedEnvironment:
    """Return a lock's environment, and update its time of last use.

    Args:
        share: the node's share; its run directory holds the unpacked pack, if the job has one.
        section: section of the spec that names the lock.
        code: section of the spec that names the code; the lock is a file of this code.
        roots: storage roots of this node, by name.

    Raises:
        MissingEnvironmentError: the environment is not built yet; its build is now requested.
        OSError: the request cannot be written.
        ValueError: the lock is missing or unsuitable, or another user could change the environment.
    """
    assert section.lock is not None, "the environment has a lock"
    base, folder = Path(share.run.code), PurePosixPath().parts
    if code is not None and code.folder is not None:
        name, relative = split_place(code.folder)
        base = root_at(roots, name, named=f"program.code.folder={code.folder!r}")
        folder = PurePosixPath(relative).parts
    request = request_of(base, folder, section.lock, python=section.python, user=share.launch.user)
    name = section.root or share.spec.checkpoint.root
    store = EnvironmentStore(root_at(roots, name, named=f"program.environment.root={name!r}"))
    digest = request.digest
    found = store.find(digest)
    if found is None:
        store.request(request)
        raise MissingEnvironmentError(
            f"environment {digest[:12]} of environment.lock={section.lock!r} is not built yet in "
            f"{store.folder}",
            digest=digest,
        )
    return UsedEnvironment(store, found)


def root_at(roots: Mapping[str, str], name: str, *, named: str) -> Path:
    """Return the folder of a storage root on this node.

    Args:
        roots: path or URL of each root, by name.
        name: name of the root.
        named: the spec field and its value, for an error message.

    Raises:
        ValueError: the node has no such root, or the root is a bucket.
    """
    root = roots.get(name)
    if root is None:
        raise ValueError(f"{named}: this node has no root {name!r}; it has {', '.join(roots)}")
    if is_object_store(root):
        raise ValueError(f"{named}: root {name!r} is a bucket, and a program needs a folder")
    return Path(root)
