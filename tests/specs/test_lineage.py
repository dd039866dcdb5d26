"""Where a retry goes on: along the ancestry of its attempt, never on another branch."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from specs.checkpoint import (
    DataState,
    Manifest,
    TrainState,
    checkpoint_id,
    newest_of_lineage,
)
from specs.layout import Layout


def saved(attempt: int, step: int, parent: str | None = None) -> Manifest:
    return Manifest(
        checkpoint_id=checkpoint_id("job", attempt, step),
        job_id="job",
        attempt=attempt,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        train_state=TrainState(step=step, tokens=step, data=DataState(dataset_digest="d")),
        layout=Layout(),
        seed=0,
        spec_digest="s",
        parent=parent,
        kind="interval",
        param_dtype="float32",
        torch_version="2",
        save_seconds=0.1,
        files=(),
    )


# 1 -> step 30; 2 went on from there to 50; 3 branched off at step 10 of attempt 1.
CHECKPOINTS = [
    saved(1, 10),
    saved(1, 20),
    saved(1, 30),
    saved(2, 40, "job.a1.step-30"),
    saved(2, 50, "job.a1.step-30"),
    saved(3, 20, "job.a1.step-10"),
]
PARENTS = {1: None, 2: "job.a1.step-30", 3: "job.a1.step-10"}


@pytest.mark.parametrize(
    ("attempt", "parents", "expected"),
    [
        (1, PARENTS, "job.a1.step-30"),
        (2, PARENTS, "job.a2.step-50"),
        (3, PARENTS, "job.a3.step-20"),  # its own, although both other branches went further
        (4, PARENTS | {4: "job.a3.step-20"}, "job.a3.step-20"),  # has saved nothing itself
        (4, PARENTS | {4: "job.a1.step-20"}, "job.a1.step-20"),
        (4, PARENTS | {4: "job.a1.step-25"}, "job.a1.step-20"),  # that one is gone: the one before
        (4, PARENTS | {4: "job.a3.step-15"}, "job.a1.step-10"),  # nothing before it in its attempt
        (4, PARENTS | {4: None}, None),
    ],
)
def test_a_retry_stays_on_its_branch(
    attempt: int, parents: dict[int, str | None], expected: str | None
) -> None:
    for order in (CHECKPOINTS, CHECKPOINTS[::-1]):
        newest = newest_of_lineage(order, attempt=attempt, parents=parents)
        assert (newest and newest.checkpoint_id) == expected


def test_a_chain_that_leads_to_no_older_attempt_is_refused() -> None:
    with pytest.raises(ValueError, match="no older"):
        newest_of_lineage([], attempt=2, parents={2: "job.a2.step-10"})
