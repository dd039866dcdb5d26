"""Sections `retry` and `guard`: what follows a failed attempt, and training that goes wrong."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import Seconds, SpecModel
from trainyard.run.failures import FailureReason


class RetrySection(SpecModel):
    """What the server does after a failed attempt."""

    max_retries: Annotated[int, Field(ge=0, le=1000)] = 2
    """Attempts that may follow failures; those after a lost or preempted node, or after a launch
    that its node put back, do not count."""
    backoff_seconds: Seconds = 5.0
    """Wait before a retry; doubles with each one in a row, up to ten minutes. The first in a row
    after a signal to a rank has none. After a launch that its node put back it is one second, and
    doubles from the sixth in a row on."""
    on: Annotated[tuple[FailureReason, ...], Field(strict=False)] = (
        FailureReason.HANG,
        FailureReason.NODE_LOST,
        FailureReason.PREEMPTED,
        FailureReason.LAUNCH_ERROR,
        FailureReason.TRAINER_ERROR,
    )
    """Failures that are retried; a launch that its node put back always is. `trainer_error` stands
    for `program_error` too. `out_of_memory`, `data_error`, `not_allowed`, `program_start_error` and
    `disk_limit` never are."""
    node_lost_after_seconds: Seconds = 600.0
    """Silence after which a node counts as lost although nothing proves that its ranks ended."""


GuardAction = Literal["stop", "rollback", "ignore"]


class GuardSection(SpecModel):
    """What happens when training goes wrong without crashing."""

    non_finite_loss: GuardAction = "stop"
    """On a loss or gradient norm that is NaN or infinite."""
    loss_spike: GuardAction = "ignore"
    """On a loss far above its recent course."""
    spike_factor: Annotated[float, Field(gt=1, le=1000)] = 3.0
    """Standard deviations above the mean of the last logged losses that count as a spike."""
    hang_seconds: Annotated[float, Field(gt=0, le=10**8, json_schema_extra={"unit": "s"})] = 600.0
    """Silence of the trainer's heartbeat while training that counts as a hang; other phases have
    limits of their own, never below this one."""
