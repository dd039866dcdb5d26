"""The world sizes that a resume offers as free, and a resize without a change."""

from __future__ import annotations

from typing import Any

import pytest

from server.core.context import Context
from server.core.errors import ConflictError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.resume import options, resume
from tests.actors import ADA
from tests.server.harness import Harness
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import DesiredState

TRAINING = {"steps": 100, "global_batch_size": 16, "micro_batch_size": 4}


def test_an_option_is_free_where_a_node_holds_the_units_of_its_layouts(
    context: Context, harness: Harness
) -> None:
    """A job with one sequence a step and one block has only layouts of `tp` and `cp`."""
    harness.add_node("node-1", slots=4)
    harness.add_node("node-2", slots=4)
    job_id, (supervisor,) = harness.running(
        model={"size": "debug", "n_layers": 1},
        training={"steps": 100, "global_batch_size": 1, "micro_batch_size": 1},
        resources={"world_size": 2},
        parallelism={"tp": 2},
    )
    harness.commit_checkpoint(job_id, 20)
    supervisor.end("succeeded")

    def free() -> list[int]:
        return [
            o.world_size
            for o in options(context, job_id, scope=SYSTEM_SCOPE).options
            if o.free_now and o.layouts
        ]

    assert {1, 2, 4} <= {*free()}
    harness.running(name="first", training=TRAINING, resources={"world_size": 3})
    assert free() == [1, 2, 4]
    harness.running(name="second", training=TRAINING, resources={"world_size": 3})
    assert free() == [1], "one slot is free on each node, and no pair on one"


@pytest.mark.parametrize("fields", [{}, {"world_size": 2}, {"dry_run": True}])
def test_a_resize_that_changes_nothing_is_refused(
    context: Context, harness: Harness, fields: dict[str, Any]
) -> None:
    harness.add_node(slots=4)
    job_id, _ = harness.running(training=TRAINING, resources={"world_size": 2})
    with pytest.raises(ConflictError, match="runs on FSDP 2 with these settings already"):
        resume(context, job_id, ResumeRequest.model_validate(fields), actor=ADA)
    assert harness.job(job_id).desired == DesiredState.RUN
    resume(context, job_id, ResumeRequest(allow_code_change=True), actor=ADA)
    assert harness.job(job_id).desired == DesiredState.STOP
