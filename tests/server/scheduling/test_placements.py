"""Placements: many jobs in a transaction, each on its own where one of them fails."""

from __future__ import annotations

from typing import Any

import pytest

from server.context import Context
from server.database.rows import Job
from server.scheduling import placements
from tests.server.harness import Harness
from tests.server.queue.test_groups import statements
from trainyard.protocol.states import JobState


def test_an_error_of_one_job_keeps_no_other_from_its_slots(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness.add_node(slots=3)
    first, broken, last = (harness.submit() for _ in range(3))
    start = placements._start

    def fail_for_one(context: Context, connection: Any, job: Job, *rest: Any) -> Any:
        if job.id == broken:
            raise RuntimeError("of one job alone")
        return start(context, connection, job, *rest)

    monkeypatch.setattr(placements, "_start", fail_for_one)
    harness.place()

    states = [harness.job(job_id).state for job_id in (first, broken, last)]
    assert states == [JobState.STARTING, JobState.QUEUED, JobState.STARTING]
    assert f"job {broken} could not be placed" in caplog.text
    assert len(harness.dispatcher.sent) == 2


def test_jobs_that_are_placed_together_cost_no_further_statement(
    harness: Harness, context: Context
) -> None:
    counts = []
    for number in (2, 20):
        harness.add_node(f"node-{number}", slots=number)
        job_ids = [harness.submit() for _ in range(number)]
        with statements(context) as seen:
            assert harness.place() == number
        counts.append(len(seen))
        assert {harness.kinds(job_id)[-1] for job_id in job_ids} == {"placed"}
    assert counts[0] == counts[1]
