"""`advise` and its SDK call against the real API."""

from __future__ import annotations

import json

from server.goodput.step_sums import DATA, STEP
from tests.library.conftest import Run, Yard
from tests.server.advice.test_advice import record


def test_a_paragraph_for_each_finding(yard: Yard, run: Run) -> None:
    harness = yard.harness
    job_id, _ = harness.running(step=0, name="slow")
    assert "No time of a step is recorded" in run("advise", "slow").stdout
    record(harness, harness.context, job_id, {STEP: [1.0] * 50, DATA: [0.2] * 50})
    told = run("advise", "slow").stdout
    assert "1. 20% of a recent step is spent on waiting for data." in told
    assert "At most 25% faster." in told
    assert "perf/data_seconds 0.2 s" in told
    assert "Read: the last 49 steps of attempt 1." in told
    view = json.loads(run("advise", "slow", "--json").stdout)
    assert view["findings"][0]["hindrance"] == "data_wait"
    with yard.connect() as client:
        assert client.advice(job_id).model_dump(mode="json") == view
