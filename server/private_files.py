"""Files that only their owner may read: written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def create_private(path: Path, text: str) -> bool:
    """Write a new file; return whether it was, which it is not where one is there."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = _draft(path, text)
    try:
        path.hardlink_to(draft)  # unlike a rename, a link never replaces another process's file
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def replace_private(path: Path, text: str) -> None:
    """Write a file in place of the one that is there."""
    _draft(path, text).replace(path)


def _draft(path: Path, text: str) -> Path:
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return draft
