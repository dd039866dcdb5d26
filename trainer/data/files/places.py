"""Resolves places of the form `<root>:<path>` to paths on this node, inside their roots."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.errors import DataError
from trainyard.outside.git_lfs import LONGEST_POINTER, pointer_problem
from trainyard.spec.storage_uri import is_object_store, split_place


def resolve(place: str, field: str, roots: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the real path of a place's root, and the real path of the place.

    Args:
        place: place in the spec, such as `data:books`.
        field: field and value in the spec, for messages.
        roots: path of each root on this node, by name.

    Raises:
        DataError: the root is unknown or is no folder, or the place is missing or outside of its
            root.
    """
    name, relative = split_place(place)
    if name not in roots:
        known = ", ".join(sorted(roots)) or "none"
        raise DataError(f"{field}: root {name!r} is not defined on this node (defined: {known})")
    if is_object_store(roots[name]):
        raise DataError(
            f"{field}: root {name!r} is {roots[name]} on this node; legal is a root that is a "
            "folder: object stores hold checkpoints only"
        )
    root = real(Path(roots[name]), field)
    path = real(root / relative, field)
    if not path.is_relative_to(root):
        raise DataError(
            f"{field}: {shown(root / relative)} leads through a symbolic link to {shown(path)}, "
            f"which is outside the root {shown(root)}; legal are files beneath the root",
            path=shown(root / relative),
        )
    return root, path


def real(path: Path, field: str) -> Path:
    """Return the path with every symbolic link followed.

    Raises:
        DataError: the path does not exist, or a folder in it cannot be read.
    """
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{field}: {shown(path)} cannot be opened ({cause(error)}); legal is an existing "
            "file or folder beneath its root",
            path=shown(path),
        ) from None


def refuse_pointer(path: Path, field: str = "") -> None:
    """Reject a file that is a pointer of Git LFS; the file's reader detects all other faults.

    Args:
        path: path of the file.
        field: field and value in the spec, for the message; may be empty.

    Raises:
        DataError: the file is a pointer.
    """
    try:
        with path.open("rb") as file:
            problem = pointer_problem(file.read(LONGEST_POINTER + 1))
    except OSError:
        return
    if problem:
        raise DataError(f"{field and field + ': '}{shown(path)} {problem}", path=shown(path))


def cause(error: OSError | RuntimeError) -> str:
    """Return why a path was not resolved; RuntimeError means a cycle of links (Python < 3.13)."""
    return (error.strerror if isinstance(error, OSError) else None) or "a loop of symbolic links"


def shown(path: Path) -> str:
    """Return a path as valid UTF-8; other bytes in its name are escaped."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        DataError: the file cannot be read, or holds no JSON object.
    """
    refuse_pointer(path)
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}", path=str(path)) from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is no JSON object", path=str(path))
    return content
