"""Sections `retry` and `guard`: reactions to a failed attempt, and to training that diverges."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import Seconds, SpecModel
from trainyard.run.failures import FailureReason


class RetrySection(SpecModel):
    """Reaction of the server to a failed attempt."""

    max_retries: Annotated[int, Field(ge=0, le=1000)] = 2
    """Most attempts that may follow failures. Attempts after a lost or preempted node, or after a
    launch that its node put back, do not count."""
    backoff_seconds: Seconds = 5.0
    """Wait before a retry; it doubles with each consecutive retry, up to ten minutes. The first
    retry after a signal to a rank has no wait. After a launch that its node put back, the wait is
    one second, and doubles from the sixth consecutive launch on."""
    on: Annotated[tuple[FailureReason, ...], Field(strict=False)] = (
        FailureReason.HANG,
        FailureReason.NODE_LOST,
        FailureReason.PREEMPTED,
        FailureReason.LAUNCH_ERROR,
        FailureReason.TRAINER_ERROR,
    )
    """Failures to retry. `trainer_error` includes `program_error`. A launch that its node put back
    is always retried; `out_of_memory`, `data_error`, `not_allowed`, `program_start_error` and
    `disk_limit` never are."""
    node_lost_after_seconds: Seconds = 600.0
    """Silence after which a node counts as lost, even without proof that its ranks ended."""


GuardAction = Literal["stop", "rollback", "ignore"]


class GuardSection(SpecModel):
    """Reaction to training that goes wrong without a crash."""

    non_finite_loss: GuardAction = "stop"
    """Action on a loss or gradient norm that is NaN or infinite."""
    loss_spike: GuardAction = "ignore"
    """Action on a loss far above its recent values."""
    spike_factor: Annotated[float, Field(gt=1, le=1000)] = 3.0
    """A loss this many standard deviations above the mean of the last logged losses is a spike."""
    hang_seconds: Annotated[float, Field(gt=0, le=10**8, json_schema_extra={"unit": "s"})] = 600.0
    """Silence of the trainer's heartbeat that counts as a hang during training. Other phases have
    their own limits, never below this one."""
