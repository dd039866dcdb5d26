"""Storage roots: each holds a UUID, by which nodes prove that they see the same one."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from worker.files import create_file

ROOT_FILE = ".trainyard-root"


def identify_roots(roots: Mapping[str, Path]) -> dict[str, str]:
    """Return the UUID of each root; a folder that has none gets one.

    Raises:
        ValueError: a root cannot be made, read or written, or holds no UUID.
    """
    return {name: _identify(name, path) for name, path in roots.items()}


def _identify(name: str, path: Path) -> str:
    file = path / ROOT_FILE
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            # Of several nodes that come at once, one gives the name, and all read that one.
            create_file(file, f"{uuid.uuid4()}\n")
        text = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(
            f"root {name}={path}: {error}; a read-only root needs its {ROOT_FILE} beforehand, "
            "which holds one line with a UUID"
        ) from error
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise ValueError(f"root {name}: {file} holds {text[:80]!r}, which is no UUID") from None
