"""Storage roots for checkpoints: a folder, or a prefix in an object store."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from trainer.errors import LaunchError
from trainer.storage.object_path import ObjectPath
from trainyard.spec.storage_uri import is_object_store

StoragePath = Path | ObjectPath
"""A path on storage; both types have the methods of `pathlib.Path` that checkpoints use."""


def storage_root(text: str) -> StoragePath:
    """Return the storage root that this machine's settings give as a path or `s3://` URL.

    Raises:
        LaunchError: the URL is malformed, or the package s3fs is missing.
    """
    if not is_object_store(text):
        return Path(text)
    if find_spec("s3fs") is None:
        raise LaunchError(
            f"{text} is in an object store, but the package s3fs is not installed here: "
            "install trainyard-programs[s3] on the nodes (docs/install.md), "
            "or take a root that is a folder",
            path=text,
        )
    try:
        return ObjectPath.root(text)
    except ValueError as error:
        raise LaunchError(str(error), path=text) from error


def is_beneath(path: StoragePath, root: StoragePath) -> bool:
    """Return whether a path is a root or lies below it, with symbolic links followed."""
    if isinstance(path, ObjectPath):
        return isinstance(root, ObjectPath) and path.resolve().is_relative_to(root)
    return isinstance(root, Path) and path.resolve().is_relative_to(root.resolve())
