"""Manifests that the catalog can hold, as a report or a search on storage brings them."""

from __future__ import annotations

import math
import re

from trainyard.protocol.manifest import DCP_METADATA, Manifest, checkpoint_id

MAX_STEP = 10**9
MAX_SIZE = 2**62
FIRST_YEAR, LAST_YEAR = 1970, 9998  # of a year at the end of the calendar UTC may be none
DIGEST = re.compile(r"[0-9a-f]{1,32}")
CHECKPOINT_KIND = re.compile(r"[a-z_]{1,16}")


def check_manifest(manifest: Manifest, *, job_id: str, attempt: int) -> None:
    """Refuse a manifest of another attempt, or with what the catalog cannot hold.

    Raises:
        ValueError: naming what is wrong.
    """
    step = manifest.train_state.step
    mine = checkpoint_id(job_id, attempt, step)
    if (manifest.checkpoint_id, manifest.job_id, manifest.attempt) != (mine, job_id, attempt):
        raise ValueError(f"{manifest.checkpoint_id[:120]!r} is not of attempt {attempt}")
    for seconds in (manifest.save_seconds, manifest.write_seconds or 0.0):
        check_moment(step, seconds)
    if not CHECKPOINT_KIND.fullmatch(manifest.kind):
        raise ValueError(f"{manifest.kind[:40]!r} is no kind of checkpoint")
    if not DIGEST.fullmatch(manifest.metadata_digest):
        raise ValueError(f"{DCP_METADATA} without a checksum")
    if manifest.size > MAX_SIZE or manifest.created_at.tzinfo is None:
        raise ValueError("a size or a time that cannot be")
    if not FIRST_YEAR <= manifest.created_at.year <= LAST_YEAR:
        raise ValueError(f"created_at {manifest.created_at} is not {FIRST_YEAR} to {LAST_YEAR}")


def check_moment(step: int, seconds: float) -> None:
    """Refuse a step or a time that the database cannot hold.

    Raises:
        ValueError: naming the value.
    """
    if not 0 <= step <= MAX_STEP:
        raise ValueError(f"step {step} is not 0 to {MAX_STEP}")
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} seconds")
