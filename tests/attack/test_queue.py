"""A thousand older jobs that nothing can run."""

from __future__ import annotations

import time

import pytest

from tests.e2e.control_plane import SLOTS, ControlPlane, finished, spec
from trainyard.client.sdk import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
OLDER = 1001
SECONDS_TO_START = 60.0
"""Time in which a job starts that has slots: most of it is the import of torch."""


def test_a_thousand_jobs_that_fit_nowhere_keep_no_job_from_its_slot(
    plane: ControlPlane, yard: Client
) -> None:
    large = spec(
        "older",
        resources={"world_size": 2 * SLOTS},
        training={"micro_batch_size": 16 // SLOTS // 2},
    )
    for _ in range(OLDER):
        yard.submit(large)
    begun = time.monotonic()
    job_id = yard.submit(spec("younger", resources={"world_size": 1}, training={"steps": 5})).id
    plane.run(job_id).wait_for_step(1)
    assert time.monotonic() - begun < SECONDS_TO_START
    assert finished(yard, job_id).state == "succeeded"
    waiting = list(yard.jobs(states=["queued"]))
    assert len(waiting) == OLDER
    assert all(job.reason for job in waiting)
