"""Compares a fork with its origin, which is the job that wrote its start checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.protocol.fork_rules import departures, same_steps
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.resume_parts import CheckpointPart
from trainyard.spec.job import JobSpec

UNKNOWN = "the settings of the other job, which its checkpoint does not hold"


@dataclass(frozen=True)
class Origin:
    """Similarities between a fork and the job that wrote the fork's start checkpoint."""

    parts: tuple[CheckpointPart, ...]
    """Parts of the checkpoint that the fork loads."""
    differs: tuple[str, ...]
    """Omitted parts and changed fields that affect the result, as readable text."""
    same_steps: bool
    """Whether each step of the fork has the same sequences as that step of the other job."""
    same_rate: bool
    """Whether the fork's learning rate follows the other job's schedule."""


def origin_of(manifest: Manifest, spec: JobSpec, parts: tuple[CheckpointPart, ...]) -> Origin:
    """Compare a fork with the job that wrote the manifest's checkpoint.

    Args:
        manifest: the manifest of the fork's start checkpoint.
        spec: the effective spec of the fork's attempt.
        parts: the parts of the checkpoint that the fork loads.
    """
    before = manifest.spec
    if before is None:  # a checkpoint of an older version
        return Origin(parts, (UNKNOWN,), same_steps=False, same_rate=False)
    counted = CheckpointPart.COUNTERS in parts
    return Origin(
        parts,
        departures(before, spec, parts),
        same_steps=same_steps(before, spec, parts),
        same_rate=counted and before.schedule == spec.schedule,
    )
