"""Legal combinations of checkpoint parts, and the initial state of a job that loads some."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from trainyard.protocol.manifest import DataState, TrainState
from trainyard.protocol.resume_parts import (
    ALL_PARTS,
    CheckpointPart,
    Parts,
    parts_not_loaded,
    start_state,
)

MODEL, OPTIMIZER, COUNTERS, DATA = ALL_PARTS
STATE = TrainState(
    step=40,
    tokens=40 * 512,
    data=DataState(position=700, consumed=640, skipped=((10, 70),), dataset_digest="old"),
)


def test_parts_are_put_in_order_once_each() -> None:
    adapter: TypeAdapter[tuple[CheckpointPart, ...]] = TypeAdapter(Parts)
    assert adapter.validate_json('["counters", "model", "model"]') == (MODEL, COUNTERS)
    assert adapter.validate_json('["data", "counters", "optimizer", "model"]') == ALL_PARTS


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ("[]", "model is part"),
        ('["optimizer"]', "model is part"),
        ('["model", "data"]', "counters"),
    ],
)
def test_parts_that_make_no_job_are_refused(parts: str, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        TypeAdapter(Parts).validate_json(parts)


def test_what_is_left_out_is_said_and_starts_anew() -> None:
    assert parts_not_loaded(ALL_PARTS) == ()
    assert start_state(STATE, ALL_PARTS, dataset_digest="old") == STATE

    assert [text.split(":")[0] for text in parts_not_loaded([MODEL])] == [
        "without optimizer",
        "without counters",
        "without data",
    ]
    fresh = TrainState(step=0, tokens=0, data=DataState(dataset_digest="new"))
    assert start_state(STATE, [MODEL, OPTIMIZER], dataset_digest="new") == fresh

    counted = start_state(STATE, [MODEL, COUNTERS], dataset_digest="new")
    assert (counted.step, counted.tokens) == (40, 40 * 512)
    assert counted.data == DataState(dataset_digest="new")
