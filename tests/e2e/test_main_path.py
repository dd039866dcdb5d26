"""The main path through the real parts: submit, watch, stop, resume on other slots, succeed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.control_plane import (
    ONE_RANK,
    ControlPlane,
    Follower,
    assert_each_once,
    assert_told_once,
    finished,
    spec,
    wait_for,
)
from tests.e2e.workers import joined_node
from trainyard.client.sdk import Client
from trainyard.protocol.rest.event_data import MetricsStored
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.states import JobState

pytestmark = pytest.mark.timeout(400)
STEPS = 24
TRAINYARD = Path(sys.executable).with_name("trainyard")


def test_a_job_goes_on_with_other_slots_exactly_where_it_stood(
    plane: ControlPlane, yard: Client, follower: Follower
) -> None:
    job_id = yard.submit(spec("main-path", training={"steps": STEPS})).id
    plane.run(job_id).hold_at(3)
    wait_for(lambda: live_steps(follower, job_id), "points over the stream")
    yard.stop(job_id, reason="other slots")
    plane.run(job_id).go_on_to_stop()
    stopped = finished(yard, job_id)
    assert (stopped.state, stopped.attempt) == (JobState.STOPPED, 1)
    step = stopped.progress.step
    assert 3 <= step < STEPS

    # Three: they do not divide the global batch of 16.
    compared = yard.resume(job_id, world_size=3, dry_run=True).preview
    changes = {c.name: (c.before, c.after) for c in compared.changes if c.changed}
    assert changes["layout"] == ("FSDP 2", "FSDP 3")
    assert not {"global batch size", "data position", "seed"} & changes.keys()
    assert yard.job(job_id).state == JobState.STOPPED

    follower.of(job_id)
    follower.events.clear()  # the next end of the job is its second
    reply = yard.resume(job_id, world_size=3)
    assert reply.preview.step == step
    done = finished(yard, job_id)
    assert (done.state, done.attempt, done.progress.step) == (JobState.SUCCEEDED, 2, STEPS)
    second, first = yard.attempts(job_id)
    assert (first.outcome, first.last_step) == ("stopped", step)
    assert (second.cause, second.layout_name, second.start_step) == ("resume", "FSDP 3", step)
    assert second.continuity is not None
    assert second.continuity.ok, second.continuity
    assert {c.name for c in second.continuity.checks} >= {"sequences", "lr", "loss"}

    course = assert_each_once(yard, job_id, steps=STEPS)
    assert [course.attempts[s] for s in (1, step, step + 1, STEPS)] == [1, 1, 2, 2]
    newest = next(yard.checkpoints(job_id))
    assert (newest.step, newest.kind, newest.layout) == (STEPS, "final", "FSDP 3")
    assert yard.checkpoint(newest.id).manifest.step == STEPS
    kinds = [event.kind for event in follower.of(job_id)]
    assert kinds.count("continuity_checked") == 1


def test_a_drained_node_is_left_with_a_save_and_the_job_goes_on_from_it(
    plane: ControlPlane, yard: Client
) -> None:
    moved = spec("moved", training={"steps": 12}, retry={"max_retries": 0}, resources=ONE_RANK)
    job_id = yard.submit(moved).id
    plane.run(job_id).hold_at(3)
    yard.drain(plane.node)
    plane.run(job_id).go_on_to_stop()
    waiting = wait_for(lambda: queued(yard, job_id), "end of the attempt")
    (first,) = yard.attempts(job_id)
    assert first.failure is not None
    assert (first.failure.reason, waiting.retries_left) == ("preempted", 0)
    newest = next(yard.checkpoints(job_id))
    assert (newest.step, newest.kind) == (first.last_step, "stop")
    yard.undrain(plane.node)
    done = finished(yard, job_id)
    assert (done.state, done.attempt) == (JobState.SUCCEEDED, 2)
    second = next(yard.attempts(job_id))
    assert (second.start_step, second.parent_checkpoint_id) == (newest.step, newest.id)
    assert second.continuity is not None
    assert second.continuity.ok, second.continuity
    assert_each_once(yard, job_id, steps=12)


@pytest.mark.slow
def test_five_ranks_run_on_four_slots_and_one_and_go_on_with_four(
    plane: ControlPlane, yard: Client, tmp_path: Path
) -> None:
    training = {"steps": STEPS, "micro_batch_size": 2}
    with joined_node(plane, yard, tmp_path / "small", TRAINYARD_SLOTS="1") as small:
        wanted = spec("uneven", training=training, resources={"world_size": 5})
        job_id = yard.submit(wanted).id
        plane.run(job_id).hold_at(3)
        (first,) = yard.attempts(job_id)
        assert [(share.node, share.slots) for share in first.nodes] == [
            (plane.node, (0, 1, 2, 3)),
            (small.name, (0,)),
        ]
        assert first.layout_name == "FSDP 5"
        last = plane.run(job_id, node=small.data).rank_pid(4)
        assert last in small.processes()
        yard.stop(job_id, reason="other slots")
        plane.run(job_id).go_on_to_stop()
        stopped = finished(yard, job_id)
        assert stopped.state == JobState.STOPPED, stopped.reason
        yard.resume(job_id, world_size=4)
        done = finished(yard, job_id)
    assert (done.state, done.attempt, done.progress.step) == (JobState.SUCCEEDED, 2, STEPS)
    second = next(yard.attempts(job_id))
    assert (second.layout_name, second.start_step) == ("FSDP 4", stopped.progress.step)
    assert second.continuity is not None
    assert second.continuity.ok, second.continuity
    resumed = assert_each_once(yard, job_id, steps=STEPS)
    alone = spec("one-rank", training=training, resources={"world_size": 1})
    reference_id = yard.submit(alone).id
    assert finished(yard, reference_id).state == JobState.SUCCEEDED
    reference = assert_each_once(yard, reference_id, steps=STEPS)
    for step in range(1, STEPS + 1):
        digest = ("data_digest", step)
        assert resumed.values[digest] == reference.values[digest], "the same sequences, in order"
        loss = ("train/loss", step)
        assert float(resumed.values[loss]) == pytest.approx(float(reference.values[loss]), rel=1e-4)


def queued(yard: Client, job_id: str) -> JobView | None:
    """Return a job that waits for slots again."""
    job = yard.job(job_id)
    return job if (job.state, job.attempt) == (JobState.QUEUED, 1) else None


def live_steps(follower: Follower, job_id: str) -> list[int]:
    """Return the steps whose points the stream has brought."""
    return [
        event.data.step
        for event in tuple(follower.notices)
        if isinstance(event.data, MetricsStored) and event.job_id == job_id
    ]


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    """A spec file of a job of three steps on one slot."""
    file = tmp_path / "job.json"
    file.write_text(json.dumps(spec("by-hand", training={"steps": 3}, resources=ONE_RANK)))
    return file


def trainyard(plane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with only the configuration that `up` has written."""
    return subprocess.run(
        [TRAINYARD, *arguments],
        env=plane.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_command_follows_a_job_which_is_reported_once(
    plane: ControlPlane, yard: Client, follower: Follower, spec_file: Path
) -> None:
    waited = trainyard(plane, "submit", str(spec_file), "--wait")
    assert waited.returncode == 0, waited.stderr
    assert waited.stdout.splitlines()[-1].startswith("by-hand  ✓ succeeded  step 3/3 (100 %)")
    assert re.search(r"by-hand +✓ succeeded +3/3", trainyard(plane, "ps").stdout)
    csv = trainyard(plane, "metrics", "@last", "--csv").stdout.splitlines()
    assert csv[0] == "attempt,step,time,name,value"
    assert len([line for line in csv if ",train/loss," in line]) == 3
    followed = trainyard(plane, "logs", "@last", "--follow").stdout
    assert "succeeded at step 3" in followed

    job = next(yard.jobs(name="by-hand"))
    assert_each_once(yard, job.id, steps=3)
    kinds = [event.kind for event in assert_told_once(yard, job.id, follower)]
    assert (kinds[0], kinds[-1]) == ("submitted", "job_ended")
    text = "\n".join(line.text for line in yard.logs(job.id, rank=0, limit=1000).lines)
    assert "step 3/3" in text
    assert [line.text for line in yard.search_logs(job.id, "STEP 3/3", rank=0)]


@pytest.mark.slow
def test_the_exit_code_of_the_command_separates_failure_and_stop(
    plane: ControlPlane, yard: Client, spec_file: Path
) -> None:
    failed = trainyard(plane, "submit", str(spec_file), "--wait", "--set", "data.path=data:none")
    assert failed.returncode == 1, failed.stderr
    shown = trainyard(plane, "show", "@last").stdout
    assert "data_error" in shown
    assert "Mend the files that the message names" in shown

    command = [str(TRAINYARD), "submit", str(spec_file), "--wait", "--json"]
    settings = ("--set", "training.steps=100000", "--set", "name=endless")
    with subprocess.Popen(
        [*command, *settings], env=plane.environment, stdout=subprocess.PIPE
    ) as waiting:
        job = wait_for(lambda: next(yard.jobs(name="endless"), None), "job")
        plane.run(job.id).wait_for_step(2)
        assert trainyard(plane, "stop", "endless", "--wait").returncode == 0
        out, _ = waiting.communicate(timeout=300)
    assert waiting.returncode == 3
    assert json.loads(out)["state"] == "stopped"
