"""`trainyard fork`: its output, what it stores, and its refusals."""

from __future__ import annotations

import json
import re

import pytest

from server.jobs.attempts.retry_policy import OVER_TIME
from tests.library.conftest import Run, Yard
from trainyard.run.failures import FailureReason


@pytest.fixture
def source(yard: Yard) -> str:
    """A running job called `base` with checkpoints of steps 1 and 4."""
    job_id, (supervisor,) = yard.harness.running(name="base", resources={"world_size": 2})
    yard.harness.commit_checkpoint(job_id, 1)
    supervisor.train(4)
    yard.harness.commit_checkpoint(job_id, 4)
    return job_id


def test_a_dry_run_lists_what_stays_exact_and_stores_nothing(
    yard: Yard, run: Run, source: str
) -> None:
    setting = ("--set", "training.steps=200")
    result = run("fork", "base@step-1", *setting, "--dry-run")
    assert result.exit_code == 0
    assert (
        f"base-fork, with model, optimizer, counters, data of {source}.a1.step-1" in result.stdout
    )
    assert re.search(r"^  data order +✓ continues at position 16", result.stdout, re.MULTILINE)
    assert re.search(r"^  curve +✗ differs from the other job's curve", result.stdout, re.MULTILINE)
    assert "Nothing was stored." in result.stdout
    with yard.connect() as sdk:
        assert [job.name for job in sdk.jobs()] == ["base"]


def test_a_fork_is_a_job_that_names_its_ancestor(yard: Yard, run: Run, source: str) -> None:
    arguments = ("--parts", "model,counters", "--name", "tuned", "--set", "optimizer.lr=1e-5")
    reply = json.loads(run("fork", "base", *arguments, "--json").stdout)
    assert reply["preview"]["checkpoint_id"] == f"{source}.a1.step-4", "the newest of the lineage"
    with yard.connect() as sdk:
        job = sdk.job(reply["job"]["id"])
        assert (job.name, job.spec.optimizer.lr) == ("tuned", 1e-5)
        assert job.forked_from == f"{source}.a1.step-4"
        (descendant,) = sdk.checkpoint(job.forked_from).descendants
        assert descendant.job_id == job.id
    shown = run("show", "tuned").stdout
    assert re.search(r"forked from +\S+\.a1\.step-4 \(model, counters\)", shown)


def test_an_empty_value_takes_a_field_out(yard: Yard, run: Run, source: str) -> None:
    changed = ("--set", "resources.world_size=1", "--set", "training.steps=300", "--json")
    reply = json.loads(run("fork", "base", *changed).stdout)
    assert yard.harness.place() == 1
    supervisors = yard.harness.claim_all(reply["job"]["id"])
    yard.harness.commit_checkpoint(reply["job"]["id"], 5)
    assert supervisors[0].reply.spec.resources.world_size == 1
    again = ("--set", "training.steps=", "--set", "name=third", "--json")
    second = json.loads(run("fork", reply["job"]["id"], *again).stdout)
    assert second["job"]["name"] == "third"
    assert second["preview"]["plan"]["steps"] == 100, "the default again"
    assert second["preview"]["plan"]["world_size"] == 1
    assert source not in second["preview"]["checkpoint_id"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "model.dim=128"), "--set model.dim=128"),
        (("--set", "training.stepz=1"), "--set training.stepz=1"),
        (("--set", "training"), "write section.field=value"),
        (("--set", "training.steps=1"), "\n  training.steps  steps=1, but"),
        (("--parts", "optimizer"), "model is part of every load"),
        (("--parts", "everything"), "--parts everything"),
        (("--name", "a b"), "--name a b"),
    ],
)
def test_what_is_refused_names_the_setting(
    run: Run, source: str, arguments: tuple[str, ...], said: str
) -> None:
    result = run("fork", source, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "changes." not in result.stderr
    assert "Tuple" not in result.stderr


def test_a_job_without_checkpoints_cannot_be_forked(yard: Yard, run: Run) -> None:
    yard.harness.submit(name="bare")
    result = run("fork", "bare")
    assert result.exit_code == 2
    assert "has saved no checkpoint" in result.stderr


def test_a_failure_that_would_come_again_is_followed_by_the_fork_that_helps(
    yard: Yard, run: Run
) -> None:
    job_id, (supervisor,) = yard.harness.running(name="hot", step=30, retry={"max_retries": 0})
    yard.harness.commit_checkpoint(job_id, 30)
    supervisor.end("failed", FailureReason.NON_FINITE_LOSS, step=45)
    shown = run("show", "hot").stdout
    assert "ends in the same way" in " ".join(shown.split())
    (line,) = (line for line in shown.splitlines() if "trainyard fork" in line)
    command = line.split("trainyard ")[1].split("  ")[0].split()
    assert command == ["fork", "hot@a1.step-30", "--set", "optimizer.lr=0.00015"]
    dry = run("resume", "hot", "--dry-run")
    assert dry.exit_code == 0
    assert "Warning: A resume takes the same steps" in dry.stderr
    forked = run(*command)
    assert forked.exit_code == 0, forked.stdout
    assert "optimizer.lr: 0.0003 -> 0.00015" in " ".join(forked.stdout.split())


def test_a_failure_before_any_checkpoint_is_followed_by_a_new_job(yard: Yard, run: Run) -> None:
    _, (supervisor,) = yard.harness.running(
        name="hot", optimizer={"lr": 100.0}, retry={"max_retries": 0}
    )
    supervisor.end("failed", FailureReason.NON_FINITE_LOSS, step=5)
    assert "trainyard submit FILE --set optimizer.lr=50" in run("show", "hot").stdout


def test_a_resume_warns_where_it_would_have_the_bound_that_ended_the_job(
    yard: Yard, run: Run
) -> None:
    job_id, (supervisor,) = yard.harness.running(
        name="long", step=30, resources={"max_runtime_seconds": 600}, retry={"on": ["node_lost"]}
    )
    yard.harness.commit_checkpoint(job_id, 30)
    supervisor.end("failed", FailureReason.PREEMPTED, remedy=OVER_TIME)
    longer = "resources.max_runtime_seconds=1200"
    assert f"trainyard resume long --set {longer}" in run("show", "long").stdout
    for other in ((), ("--set", "retry.backoff_seconds=1")):
        warned = run("resume", "long", *other, "--dry-run")
        assert warned.exit_code == 0, warned.stderr
        assert "Warning: Resume with a longer resources.max_runtime_seconds" in warned.stderr
        assert f"Use --set {longer}." in " ".join(warned.stderr.split())
    for helping in (longer, "resources.max_runtime_seconds="):
        quiet = run("resume", "long", "--set", helping, "--dry-run")
        assert (quiet.exit_code, quiet.stderr) == (0, "")
