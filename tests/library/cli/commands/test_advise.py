"""`advise` and its SDK call against the real API."""

from __future__ import annotations

import json

from sqlalchemy import insert

from server.core.database.slot_tables import calibrations
from server.telemetry.goodput.step_sums import DATA, STEP
from tests.library.conftest import Run, Yard
from tests.server.telemetry.advice.test_advice import record
from trainyard.planner.speed.rates import prior_rates


def test_a_paragraph_for_each_finding(yard: Yard, run: Run) -> None:
    harness = yard.harness
    job_id, _ = harness.running(step=0, name="slow")
    assert "No step times are recorded" in run("advise", "slow").stdout
    record(harness, harness.context, job_id=job_id, values={STEP: [1.0] * 50, DATA: [0.2] * 50})
    told = run("advise", "slow").stdout
    assert "1. 20 % of a recent step is spent on waiting for data." in told
    assert "At most 25 % faster." in told
    assert "perf/data_seconds 0.2 s" in told
    assert "Read: the last 49 steps of attempt 1." in told
    view = json.loads(run("advise", "slow", "--json").stdout)
    assert view["findings"][0]["hindrance"] == "data_wait"
    with yard.connect() as client:
        assert client.advice(job_id).model_dump(mode="json") == view


def test_the_sdk_reads_what_runs_taught(yard: Yard) -> None:
    with yard.connect() as client:
        assert client.calibrations().calibrations == ()
        kind = {"device": "cpu", "device_name": "a processor"}
        fitted = prior_rates("cpu", "a processor")
        now = yard.harness.clock.now()
        with yard.harness.context.database.write() as connection:
            row = {**kind, "fitted": fitted, "fitted_at": now}
            connection.execute(insert(calibrations).values(row))
        (found,) = client.calibrations().calibrations
    assert (found.device, found.calibration) == ("cpu", fitted)
