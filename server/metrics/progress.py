"""The progress of a job, brought forward by the metric lines of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainyard.protocol.rest.jobs import Progress
from trainyard.run.records import MetricRecord

STEP_SECONDS = "perf/step_seconds"
PACE_STEPS = 20
"""Logged steps over which the pace is averaged."""


def advanced(
    progress: Progress,
    lines: Sequence[MetricRecord],
    *,
    step: int,
    world_size: int,
    step_seconds: Sequence[float],
) -> Progress:
    """Return the progress after these lines.

    Args:
        progress: what was known before.
        lines: at least one line.
        step: completed steps of the attempt.
        world_size: ranks of the attempt.
        step_seconds: durations of the last steps.
    """
    values = next((line.values for line in reversed(lines) if line.values), {})
    per_device = values.get("perf/tokens_per_second_per_device")
    durations = [seconds for seconds in step_seconds if math.isfinite(seconds)]
    left = progress.seconds_left
    if durations:
        left = max(progress.steps - step, 0) * sum(durations) / len(durations)
    return progress.model_copy(
        update={
            "step": step,
            "loss": values.get("train/loss", progress.loss),
            "tokens_per_second": progress.tokens_per_second
            if per_device is None
            else per_device * world_size,
            "seconds_left": left,
        }
    )
