"""Sections `resources`, `retry`, `guard` and `env`: where it runs, what follows a failure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainyard.base.model_base import Ranks, Seconds, SpecModel, Text
from trainyard.run.failures import FailureReason
from trainyard.spec.environment import check_environment_names


def _check_env(env: dict[str, str]) -> dict[str, str]:
    check_environment_names(env)
    return env


Env = Annotated[
    dict[str, Annotated[Text, Field(max_length=4096)]],
    AfterValidator(_check_env),
    Field(max_length=100),
]


class ResourcesSection(SpecModel):
    """Slots: one is a GPU, or on a node without GPUs one CPU rank."""

    world_size: Ranks = 1
    """Slots that the job runs on, all at once."""
    nodes: Annotated[int, Field(ge=1, le=8192)] | None = None
    """Spread the slots evenly over exactly so many nodes; as few as fit when absent."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of slot; `auto` takes what the nodes offer, but never a mixture."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Queued jobs of higher priority start first; among equals the oldest."""


class RetrySection(SpecModel):
    """What the server does after a failed attempt."""

    max_retries: Annotated[int, Field(ge=0, le=1000)] = 2
    """Attempts that may follow failures; lost and preempted nodes do not count."""
    backoff_seconds: Seconds = 5.0
    """Wait before a retry; doubles with each one in a row, up to ten minutes."""
    on: Annotated[tuple[FailureReason, ...], Field(strict=False)] = (
        FailureReason.HANG,
        FailureReason.NODE_LOST,
        FailureReason.PREEMPTED,
        FailureReason.LAUNCH_ERROR,
        FailureReason.TRAINER_ERROR,
    )
    """Reasons that are worth another attempt."""
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
