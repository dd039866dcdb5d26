"""Names of checkpoints: their folders, their ids, and the files that commit them."""

from __future__ import annotations

import re

FENCE = "FENCE"
"""File in `<root>/<job>` with the number of the newest attempt; older attempts cannot commit."""
MANIFEST = "manifest.json"
COMMITTED = "COMMITTED"
"""File with the checksum of the manifest, written last. A folder without this file is no
checkpoint."""

_ID = re.compile(r"(?P<job>.+)\.a(?P<attempt>\d+)\.step-(?P<step>\d+)")


def checkpoint_path(job_id: str, attempt: int, step: int) -> str:
    """Return the folder of a checkpoint, relative to the storage root."""
    return f"{job_id}/a{attempt}/step-{step}"


def checkpoint_id(job_id: str, attempt: int, step: int) -> str:
    """Return the id of a checkpoint; it contains the attempt, so that branches never collide."""
    return f"{job_id}.a{attempt}.step-{step}"


def split_checkpoint_id(identifier: str) -> tuple[str, int, int]:
    """Return the job id, attempt and step in a checkpoint id.

    Raises:
        ValueError: the text is no checkpoint id.
    """
    match = _ID.fullmatch(identifier)
    if match is None:
        raise ValueError(f"{identifier!r} is no checkpoint id: write <job>.a<attempt>.step-<n>")
    return match["job"], int(match["attempt"]), int(match["step"])
