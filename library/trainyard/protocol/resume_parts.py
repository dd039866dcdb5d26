"""Parts of a checkpoint that a new job may load, and the effects of omitting a part."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from trainyard.protocol.manifest import DataState, TrainState


class CheckpointPart(StrEnum):
    """A part of a checkpoint."""

    MODEL = "model"
    """Weights of the model."""
    OPTIMIZER = "optimizer"
    """Optimizer state: both moments and the step counter of each parameter."""
    COUNTERS = "counters"
    """Steps and tokens so far; they determine the position in the learning-rate schedule."""
    DATA = "data"
    """Position in the data."""


ALL_PARTS = tuple(CheckpointPart)

WITHOUT = {
    CheckpointPart.OPTIMIZER: "the optimizer's moments start at zero, so its first updates are "
    "those of a fresh start",
    CheckpointPart.COUNTERS: "steps and tokens are counted from 0, and the learning-rate schedule "
    "starts again",
    CheckpointPart.DATA: "the data starts at position 0: sequences are repeated that were "
    "trained on, and no window is skipped",
}
"""For each part, the effect of not loading the part."""


def _legal(parts: tuple[CheckpointPart, ...]) -> tuple[CheckpointPart, ...]:
    if CheckpointPart.MODEL not in parts:
        raise ValueError("model is part of every load; legal with it: optimizer, counters, data")
    if CheckpointPart.DATA in parts and CheckpointPart.COUNTERS not in parts:
        raise ValueError("data goes with counters: a position belongs to a step")
    return tuple(part for part in CheckpointPart if part in parts)


Parts = Annotated[
    tuple[Annotated[CheckpointPart, Field(strict=False)], ...],
    Field(strict=False, max_length=4, json_schema_extra={"minItems": 1}), AfterValidator(_legal),
]  # fmt: skip
"""Parts to load, in this order: `model`, then any of the other parts. `data` requires
`counters`."""


def parts_not_loaded(parts: Iterable[CheckpointPart]) -> tuple[str, ...]:
    """Return the effects of omitting the parts that are not loaded; empty if all parts are
    loaded."""
    taken = set(parts)
    return tuple(f"without {part}: {text}" for part, text in WITHOUT.items() if part not in taken)


def start_state(
    state: TrainState, parts: Iterable[CheckpointPart], *, dataset_digest: str
) -> TrainState:
    """Return the initial counters of a job that loads only these parts of a checkpoint."""
    taken = set(parts)
    counted = CheckpointPart.COUNTERS in taken
    return TrainState(
        step=state.step if counted else 0,
        tokens=state.tokens if counted else 0,
        data=state.data
        if CheckpointPart.DATA in taken
        else DataState(dataset_digest=dataset_digest),
    )
