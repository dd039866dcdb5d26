"""Scripts that call `trainyard.init()`, through the real parts: curves, orders, an outage."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from benchmarks.run_log.outage import deviations, end_after, job_of
from tests.e2e.control_plane import (
    LEASE_SECONDS,
    ONE_RANK,
    ControlPlane,
    course,
    finished,
    in_state,
    wait_for,
)
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState

pytestmark = pytest.mark.timeout(400)
SCRIPT = """
import time
import torch.distributed as dist
import trainyard

dist.init_process_group("gloo")
run = trainyard.init()
step, saved = 0, []
while not run.should_stop():
    step += 1
    run.log({"train/loss": float(step + run.rank)}, step=step)
    run.log({"gpu": run.rank}, step=step, per_rank=True)
    run.consumed(step, [2 * step + run.rank])
    run.progress(step, total=100_000)
    if run.should_save(step):
        saved.append(step)
    time.sleep(0.02)
print("saved at", saved, "stopped after", step, flush=True)
dist.destroy_process_group()
"""


def test_a_script_logs_from_all_ranks_and_obeys(plane: ControlPlane, yard: Client) -> None:
    folder = plane.folders.data / "script"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    program: dict[str, Any] = {"command": ["train.py"], "code": {"folder": "data:script"}}
    submitted = yard.submit(
        {
            "name": "script",
            "program": program,
            "resources": {"world_size": 2, "device": "cpu"},
        }
    )
    job_id = submitted.id
    in_state(yard, job_id, JobState.RUNNING)
    wait_for(lambda: "save" in yard.job(job_id).verbs, "the answer to saves")
    request = yard.request(job_id, "save")
    answered = yard.wait_for_answer(job_id, request.id, timeout=120)
    assert answered.answer is not None
    assert answered.answer.message.startswith("the program saves at step")
    assert yard.job(job_id).progress.steps == 100_000
    yard.stop(job_id)
    stopped = finished(yard, job_id)
    assert stopped.state == JobState.STOPPED
    last = stopped.progress.step
    found = course(yard, job_id)
    shared = ("train/loss", "train/loss/min", "train/loss/mean", "train/loss/max")
    for name in (*shared, "gpu/rank-0", "gpu/rank-1", "data_digest"):
        assert found.steps[name] == list(range(1, last + 1)), name
    ends = [float(found.values[name, last]) for name in (*shared, "gpu/rank-0", "gpu/rank-1")]
    assert ends == [last, last, last + 0.5, last + 1, 0, 1]
    ends_of_logs = [yard.logs(job_id, rank=rank).lines[-1].text for rank in (0, 1)]
    step = answered.answer.step
    assert ends_of_logs == [f"saved at [{step}] stopped after {last}"] * 2


def test_a_killed_server_loses_and_doubles_no_point(plane: ControlPlane, yard: Client) -> None:
    folder = plane.folders.data / "outage"
    job_id = yard.submit(job_of(folder, processes=4, values=20)).id
    wait_for(lambda: yard.metrics(job_id, max_points=1).last_step, "points")
    with plane.killed("server", yard):
        time.sleep(LEASE_SECONDS + 2)
    last = end_after(folder, 2.0)
    assert finished(yard, job_id).state == JobState.SUCCEEDED
    found = deviations(yard.metrics_csv(job_id), processes=4, values=20, steps=last)
    assert found == {"points": last * 80, "lost": 0, "doubled": 0, "other": 0}
    assert len(list(yard.attempts(job_id))) == 1


FACTS = """
import trainyard.wandb as wandb

run = wandb.init(config={"net": {"width": 8}}, tags=["two words"])
run.log({"loss": 0.5, "rows": wandb.Table(columns=["id"], data=[[1], [2]])})
run.summary["best"] = 0.25
"""


def test_facts_of_a_script_are_those_of_its_job(plane: ControlPlane, yard: Client) -> None:
    program = {
        "command": [sys.executable, "-c", FACTS],
        "launcher": "command",
        "arguments": {"lr": 0.1},
    }
    spec = {"name": "facts", "tags": ["own"], "program": program, "resources": ONE_RANK}
    job = finished(yard, yard.submit(spec).id)
    assert job.state == JobState.SUCCEEDED, job.reason
    assert job.facts is not None
    assert job.facts.config == {"lr": 0.1, "net.width": 8}
    assert job.facts.summary == {"best": 0.25}
    assert job.tags == ("own", "two-words")
    found = [each.id for each in yard.jobs(search="net.width=8 two-words")]
    assert found == [job.id]
    (table,) = yard.artifacts(job.id, kind="table")
    assert table.name == "rows.json"
