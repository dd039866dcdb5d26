"""Storage roots: each holds a UUID, by which nodes prove that they see the same one."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

from trainyard.run.atomic import create_file
from trainyard.spec.storage_uri import ROOT_FILE, is_object_store
from worker.launchers.rank_environment import TRAINER, inherited_environment

IDENTIFY_SECONDS = 600.0
"""Time in which an object store must have answered; the trainer gives up sooner."""


def identify_roots(roots: Mapping[str, str]) -> dict[str, str]:
    """Return the UUID of each root; one that has none gets one.

    Raises:
        ValueError: a root cannot be made, read or written, or holds no UUID.
    """
    return {name: _identify(name, place) for name, place in roots.items()}


def _identify(name: str, place: str) -> str:
    if is_object_store(place):
        return _uuid(_told_by_the_trainer(name, place), f"root {name}={place}")
    path = Path(place)
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
    return _uuid(text, f"root {name}: {file}")


def _told_by_the_trainer(name: str, place: str) -> str:
    """Ask the trainer, which knows object stores, in the very environment that ranks will have."""
    try:
        done = subprocess.run(
            [*TRAINER, "identify", place],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=inherited_environment(),
            timeout=IDENTIFY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"root {name}={place} has not answered in {IDENTIFY_SECONDS:.0f} s"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ValueError(f"root {name}={place}: {last}")
    return done.stdout.strip()


def _uuid(text: str, where: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise ValueError(f"{where} holds {text[:80]!r}, which is no UUID") from None
