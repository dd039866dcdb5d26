"""Storage roots: each root contains a UUID, which proves that nodes see the same root."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from trainyard.run.atomic import create_file
from trainyard.spec.storage_uri import ROOT_FILE, is_object_store
from worker.launchers.rank_environment import TRAINER, output_of

IDENTIFY_SECONDS = 600.0
"""Time limit, in seconds, for an object store's response; the trainer's own limits are shorter."""


def identify_roots(roots: Mapping[str, str]) -> dict[str, str]:
    """Return the UUID of each root; create the UUID if a root has none.

    Raises:
        ValueError: a root cannot be created, read or written, or its UUID is invalid.
    """
    return {name: _identify(name, place) for name, place in roots.items()}


def _identify(name: str, place: str) -> str:
    if is_object_store(place):
        try:  # the trainer, in the environment of ranks, accesses object stores
            found = output_of([*TRAINER, "identify", place], seconds=IDENTIFY_SECONDS)
        except ValueError as error:
            raise ValueError(f"root {name}={place}: {error}") from None
        return _uuid(found, f"root {name}={place}")
    path = Path(place)
    file = path / ROOT_FILE
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            # If several nodes do this at the same time, one of them creates the file, and all read
            # it.
            create_file(file, f"{uuid.uuid4()}\n")
        text = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(
            f"root {name}={path}: {error}; a read-only root needs its {ROOT_FILE} beforehand, "
            "which holds one line with a UUID"
        ) from error
    return _uuid(text, f"root {name}: {file}")


def _uuid(text: str, where: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise ValueError(f"{where} holds {text[:80]!r}, which is no UUID") from None
