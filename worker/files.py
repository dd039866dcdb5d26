"""Writes small files so that whoever reads them sees all of it or nothing, and reads records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from specs.base import RecordModel

Record = TypeVar("Record", bound=RecordModel)


def replace_file(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file durably and atomically, in place of the one that is there."""
    beside = _write_beside(path, text, mode)
    beside.replace(path)


def create_file(path: Path, text: str, *, mode: int = 0o644) -> bool:
    """Write a file durably unless it is there; say whether it was written.

    Of several that try at once, on one machine or many, one succeeds, and none sees half a file.
    """
    beside = _write_beside(path, text, mode)
    try:
        os.link(beside, path)
    except FileExistsError:
        return False
    finally:
        beside.unlink()
    return True


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """Return the record of a file, or None where there is none that can be read."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _write_beside(path: Path, text: str, mode: int) -> Path:
    # No name that ends in .json: the trainer takes every requests/*.json for a request.
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return beside
