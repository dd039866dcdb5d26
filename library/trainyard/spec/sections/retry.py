"""Sections `retry` and `guard`: reactions to a failed attempt, and to training that diverges."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.base.model_base import Seconds, SpecModel
from trainyard.run.failures import FailureReason


class RetrySection(SpecModel):
    """Reaction of the server to a failed attempt."""

    max_retries: Annotated[int, Field(ge=0, le=1000)] = 2
    """Maximum number of retries after failures. An attempt does not count as a retry if it follows
    a lost or preempted node, a damaged checkpoint that an older one replaces, or a launch that was
    put back: refused by its node before any process started."""
    backoff_seconds: Seconds = 5.0
    """Wait before a retry. The wait doubles with each consecutive retry, up to ten minutes. The
    first retry after a signal to a rank starts without a wait. After a launch that was put back,
    the wait is one second; it doubles from the sixth consecutive such launch on."""
    on: Annotated[tuple[FailureReason, ...], Field(strict=False)] = (
        FailureReason.HANG,
        FailureReason.NODE_LOST,
        FailureReason.PREEMPTED,
        FailureReason.LAUNCH_ERROR,
        FailureReason.TRAINER_ERROR,
    )
    """Failures after which the server retries. `trainer_error` includes `program_error`. The server
    always retries a launch that was put back. Otherwise it never retries `out_of_memory`,
    `data_error`, `not_allowed`, `program_start_error` and `disk_limit`."""
    node_lost_after_seconds: Seconds = 600.0
    """Time without a report after which a node counts as lost, even if its ranks may still run."""


GuardAction = Literal["stop", "rollback", "ignore"]


class GuardSection(SpecModel):
    """Reaction to training that fails without a crash: bad losses and hangs."""

    non_finite_loss: GuardAction = "stop"
    """Action on a loss or gradient norm that is NaN or infinite."""
    loss_spike: GuardAction = "ignore"
    """Action on a loss far above the recent losses."""
    spike_factor: Annotated[float, Field(gt=1, le=1000)] = 3.0
    """Threshold of a spike: the loss exceeds the mean of the last logged losses by this many
    standard deviations."""
    hang_seconds: Annotated[float, Field(gt=0, le=10**8, json_schema_extra={"unit": "s"})] = 600.0
    """Maximum time without a heartbeat during training; after that, the trainer counts as hanging.
    Other phases have limits of their own, each at least as long."""
