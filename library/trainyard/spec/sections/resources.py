"""Sections `resources` and `env`: the slots of a job, and the environment of its ranks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainyard.base.model_base import Ranks, SpecModel, Text
from trainyard.spec.environment import checked_environment

Env = Annotated[
    dict[str, Annotated[Text, Field(max_length=4096)]],
    AfterValidator(checked_environment),
    Field(max_length=100),
]


class ResourcesSection(SpecModel):
    """Slots: one is a GPU, or on a node without GPUs one CPU rank."""

    world_size: Ranks = 1
    """Slots that the job runs on, all at once."""
    nodes: Annotated[int, Field(ge=1, le=8192)] | None = None
    """Number of nodes over which the slots are spread evenly; when absent as few as fit, evenly
    where so many nodes allow it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Kind of slot; `auto` takes what the nodes offer, but never a mixture."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Queued jobs of higher priority start first; among equals the oldest."""
