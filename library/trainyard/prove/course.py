"""The values that a job recorded along its lineage, by step, and their comparison."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.client.sdk import Client
from trainyard.prove.figures import largest_difference

DIGEST = "data_digest"
"""Name of the rows with the digest of a step's sequences in the CSV of a job's metrics."""


@dataclass(frozen=True)
class Course:
    """Values that a job recorded along its lineage, by step."""

    digests: dict[int, str] = field(default_factory=dict)
    """Digest of the sequences of each step."""
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    """Values of each metric."""
    attempts: dict[int, int] = field(default_factory=dict)
    """Number of the attempt that took each step."""

    def of(self, name: str) -> dict[int, float]:
        """Return the values of a metric; empty if the job did not record it."""
        return self.values.get(name, {})

    def off(self, expected: Course, name: str, *, steps: int) -> float:
        """Return the largest relative difference of a metric from another course.

        The result is infinite if a step has no value, or a value that is not finite.
        """
        every = range(1, steps + 1)
        found, others = self.of(name), expected.of(name)
        return largest_difference(
            [found.get(s, math.nan) for s in every], [others.get(s, math.nan) for s in every]
        )


def compared_steps(found: Course, expected: Course, name: str, *, steps: int) -> int:
    """Return the number of steps of which both courses have the sequences and a metric."""
    series = (found.digests, expected.digests, found.of(name), expected.of(name))
    return sum(all(s in each for each in series) for s in range(1, steps + 1))


def course(yard: Client, job_id: str, *names: str) -> Course:
    """Return the digests and some metrics along the lineage of a job."""
    found = Course()
    for row in csv.DictReader(yard.metrics_csv(job_id, names=(DIGEST, *names))):
        step, name = int(row["step"]), row["name"]
        if name == DIGEST:
            found.digests[step] = row["value"]
            found.attempts[step] = int(row["attempt"])
        else:
            found.values.setdefault(name, {})[step] = float(row["value"])
    return found


def differing_steps(found: Mapping[int, str], expected: Mapping[int, str], *, steps: int) -> int:
    """Return the number of steps whose sequences differ or are unknown on either side."""
    every = range(1, steps + 1)
    return sum(s not in expected or found.get(s) != expected[s] for s in every)
