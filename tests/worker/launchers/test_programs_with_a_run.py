"""Programs that call `trainyard.init()`, under the supervisor: metrics, orders and requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worker.conftest import Attempt, Place, wait_for
from tests.worker.launchers import test_program_launcher as programs
from tests.worker.outer_launch import OUTER
from trainyard.protocol.record_parser import parse_record
from trainyard.protocol.states import DesiredState
from trainyard.protocol.worker_messages import PendingRequest
from trainyard.run.directory import Phase
from trainyard.run.records import MetricRecord, Request

place = programs.place

TRAIN = """
import time
import torch.distributed as dist
import trainyard
dist.init_process_group("gloo")
run = trainyard.init()
step = 0
while not run.should_stop():
    step += 1
    run.log({"loss": step + run.rank}, step=step)
    run.consumed(step, [run.rank])
    run.progress(step, total=1000)
    if run.should_save(step):
        print("saves at", step, flush=True)
    time.sleep(0.01)
print("stops after", step, flush=True)
dist.destroy_process_group()
"""
ONE = """
import time, trainyard
run = trainyard.init()
print(dict(run.config), run.job_id, run.attempt, flush=True)
for step in range(1, 100_000):
    if run.should_stop():
        break
    request = run.request()
    if request is not None:
        request.answer(f"{request.kind} of {request.request.steps}", step=step)
    run.progress(step)
    time.sleep(0.01)
"""
BEATS = """
import signal, sys, time, trainyard
run = trainyard.init()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    run.progress(1)
    time.sleep(0.05)
"""
INITIALIZE = """
import json, os
import trainyard
run = trainyard.init()
run.log({"loss": 1.0}, step=1)
print(json.dumps({"rank": run.rank, "world": run.world_size, "env": dict(os.environ)}), flush=True)
"""


def records(attempt: Attempt, file: str) -> list[MetricRecord]:
    return [parse_record(MetricRecord, one) for one in attempt.seen.files[file].splitlines()]


def said(attempt: Attempt, rank: int, words: str) -> list[str]:
    return [one for one in attempt.log(rank).splitlines() if one.startswith(words)]


def test_all_ranks_save_and_stop_at_the_same_step(place: Place) -> None:
    attempt = programs.start(place, TRAIN, launcher="torchrun")
    attempt.phase(Phase.TRAINING)
    wait_for(lambda: attempt.seen.files.get("metrics:1"), "metrics of rank 1")
    request = PendingRequest(id="0" * 26, request=Request(kind="save"))
    attempt.seen.requests.append(request)
    wait_for(lambda: attempt.seen.answers.get(request.id), "the answer")
    attempt.seen.desired = DesiredState.STOP
    assert attempt.exit().outcome == "stopped"
    for words in ("saves at", "stops after"):
        (first,), (second,) = (said(attempt, rank, words) for rank in (0, 1))
        assert first == second
    last = int(said(attempt, 0, "stops after")[0].split()[-1])
    for rank, file in enumerate(("metrics", "metrics:1")):
        found = records(attempt, file)
        assert {one.ranks for one in found} == {2}
        losses = [one.values["loss"] for one in found if one.values]
        assert losses == [step + rank for step in range(1, last + 1)]
        assert sum(one.data_digest is not None for one in found) == last
    beat = attempt.seen.reports[-1].heartbeat
    assert beat is not None
    assert (beat.steps, beat.answers) == (1000, ("save", "stop"))


def test_one_process_of_a_node_answers_requests(place: Place) -> None:
    attempt = programs.start(place, ONE, arguments={"lr": 0.5})
    request = PendingRequest(id="0" * 26, request=Request(kind="profile", steps=7))
    attempt.seen.requests.append(request)
    answer = wait_for(lambda: attempt.seen.answers.get(request.id), "the answer")
    assert (answer.ok, answer.message) == (True, "profile of 7")
    attempt.seen.desired = DesiredState.STOP
    assert attempt.exit().outcome == "stopped"
    claim = attempt.seen.claim.attempt
    assert attempt.log().splitlines()[0] == f"{{'lr': 0.5}} {claim.job_id} {claim.attempt}"


def test_a_program_that_only_reports_progress_gets_the_signal(place: Place) -> None:
    attempt = programs.start(place, BEATS, stop_grace_seconds=60.0)
    attempt.phase(Phase.TRAINING)
    wait_for(lambda: (attempt.run.root / "heartbeat.json").exists(), "a heartbeat")
    attempt.seen.desired = DesiredState.STOP
    assert attempt.exit().outcome == "stopped"


def test_metrics_of_a_rank_that_are_no_regular_file_are_not_reported(place: Place) -> None:
    secret = Path(place.local.roots["data"], "mine", "secret")
    secret.write_text(json.dumps({"step": 1, "time": 1.0, "values": {}}) + "\n")
    attempt = programs.start(
        place,
        f"""
        import os
        folder = os.environ["TRAINYARD_RUN"] + "/metrics"
        os.symlink({str(secret)!r}, folder + "/rank-1.jsonl")
        """,
    )
    assert attempt.exit().outcome == "succeeded"
    assert "metrics:1" not in attempt.seen.files


@pytest.mark.parametrize("ending", ["raise SystemExit(0)", "raise ValueError('mine')"])
def test_the_last_records_reach_the_server(place: Place, ending: str) -> None:
    script = f"import trainyard\ntrainyard.log({{'loss': 1.0}}, step=1)\n{ending}"
    attempt = programs.start(place, script)
    attempt.exit()
    assert [one.values for one in records(attempt, "metrics")] == [{"loss": 1.0}]


@pytest.mark.parametrize("launcher", ["torchrun", "command"])
def test_a_launch_around_the_worker_reaches_no_program(
    place: Place, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OUTER.items():
        monkeypatch.setenv(name, value)
    attempt = programs.start(place, INITIALIZE, launcher=launcher, ranks=1)
    assert attempt.exit().outcome == "succeeded"
    found = programs.said(attempt)
    assert (found["rank"], found["world"]) == (0, 1)
    assert not OUTER.items() & found["env"].items()
    assert b"loss" in attempt.seen.files["metrics"]
