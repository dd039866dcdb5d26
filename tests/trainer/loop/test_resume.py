"""Stops, branches and the preflight: the saves of a run, and the start of the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.ranks import RankError
from tests.trainer.runs import JOB, Attempt, Meddling, SmallJob
from tests.trainer.stored import stored_tensors
from trainyard.protocol.attempt import Overrides
from trainyard.spec.layout import Layout

TWO = Layout(dp_shard=2)


def test_all_ranks_stop_at_the_same_step_although_one_lags_behind(tmp_path: Path) -> None:
    # The stop is read after step 6, while rank 1 sleeps: it ends step 7 two seconds later.
    meddling = Meddling(stop_after=6, delay=(1, 6, 2.0))
    attempt = SmallJob(tmp_path).launch(1, TWO, meddling)  # compares the ranks' outcomes
    assert attempt.outcome.outcome == "stopped"
    assert attempt.outcome.step == 7
    assert attempt.outcome.checkpoint_id == f"{JOB}.a1.step-7"
    assert list(attempt.lines) == list(range(1, 8))
    assert [e.step for e in attempt.events if e.kind == "stop_agreed"] == [7]
    assert attempt.lines[7].time - attempt.lines[6].time > 1.5, "the delay was no delay"


def test_a_stop_that_finds_the_job_finished_is_a_success(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(tmp_path, training={"steps": 6})
    attempt = job.launch(1, Layout(), Meddling(stop_after=5))
    assert (attempt.outcome.outcome, attempt.outcome.step) == ("succeeded", 6)
    assert job.committed()[f"{JOB}.a1.step-6"].kind == "final"


def test_checkpoints_are_saved_at_intervals_and_once_at_the_end(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path,
        training={"steps": 6, "log_every_steps": 4},
        checkpoint={"interval_steps": 3},
    )
    attempt = job.launch(1, Layout())
    assert {m.train_state.step: m.kind for m in job.committed().values()} == {
        0: "preflight",
        3: "interval",
        6: "final",
    }
    # Each step has its digest; values come with the first, every fourth, each saved and the last.
    assert list(attempt.lines) == [1, 2, 3, 4, 5, 6]
    assert all(attempt.digests.values())
    assert list(attempt.values("train/loss")) == [1, 3, 4, 6]
    assert list(attempt.values("checkpoint/stall_seconds")) == [1, 4]


def test_checkpoints_are_saved_by_time(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path, training={"steps": 6}, checkpoint={"interval_seconds": 1e-6}
    )
    job.launch(1, TWO)
    # Due between two steps, saved at the end of the next one: step 1 checked at its start.
    assert {m.train_state.step for m in job.committed().values()} == {0, 1, 2, 3, 4, 5, 6}


def test_requests_are_answered(tmp_path: Path) -> None:
    asked = (
        (2, "one", '{"kind": "save"}'),
        (2, "two", '{"kind": "memory_snapshot"}'),
        (2, "three", '{"kind": "dance"}'),
        (6, "late", '{"kind": "save"}'),
    )
    job = SmallJob(tmp_path).changed(tmp_path, training={"steps": 6})
    attempt = job.launch(1, TWO, Meddling(ask_after=asked))
    answers = {
        event.data["request_id"]: (event.data["ok"], event.step, event.data["message"])
        for event in attempt.events
        if event.kind == "request_answered"
    }
    assert answers["one"] == (True, 3, f"saved as {JOB}.a1.step-3")
    assert answers["two"][:2] == (False, 3)
    assert "this job runs on CPUs" in str(answers["two"][2])
    assert answers["three"][:2] == (False, 2)
    assert answers["late"] == (True, 6, f"saved as {JOB}.a1.step-6")
    assert job.committed()[f"{JOB}.a1.step-3"].kind == "request"
    assert (attempt.run / "requests" / "one.answer.json").exists()


def test_a_resume_from_an_older_checkpoint_stays_on_its_branch(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path, training={"steps": 40}, checkpoint={"interval_steps": 10}
    )
    first = job.launch(1, TWO, Meddling(stop_after=24))
    branch_point = job.committed()[f"{JOB}.a1.step-10"]
    second = job.launch(2, TWO, Meddling(stop_after=20), resume=branch_point)
    with pytest.raises(RankError, match="died with exit code -9"):
        job.launch(3, TWO, Meddling(kill_after=25), resume=branch_point)
    third = Attempt(job.folder / "runs" / "3")

    committed = job.committed()
    for attempt in (1, 2, 3):
        assert f"{JOB}.a{attempt}.step-20" in committed
    assert committed[f"{JOB}.a3.step-20"].parent == branch_point.checkpoint_id
    assert max(third.lines) == 24, "step 25 was killed before its line was written"

    newest = committed[f"{JOB}.a3.step-20"]
    fourth = job.launch(4, TWO, resume=newest, overrides=Overrides(steps=22))
    assert fourth.outcome.outcome == "succeeded"
    assert job.committed()[f"{JOB}.a4.step-22"].parent == newest.checkpoint_id

    # Every branch was trained on the same sequences, with bitwise equal losses.
    for branch in (second, third, fourth):
        for step in set(branch.lines) & set(first.lines):
            assert branch.digests[step] == first.digests[step]
            assert branch.values("train/loss")[step] == first.values("train/loss")[step]


@pytest.mark.parametrize("layout", [Layout(), Layout(dp_shard=3), Layout(pp=2)], ids=str)
def test_a_resume_draws_no_weights_and_loads_them_all(tmp_path: Path, layout: Layout) -> None:
    job = SmallJob(tmp_path).changed(tmp_path, training={"steps": 8})
    job.launch(1, TWO, Meddling(stop_after=3))
    saved = job.committed()[f"{JOB}.a1.step-4"]
    job.launch(2, layout, Meddling(never_draws=True), resume=saved)
    job.launch(3, layout, resume=saved)
    committed = job.committed()
    mine, theirs = (stored_tensors(job, committed[f"{JOB}.a{n}.step-8"]) for n in (2, 3))
    assert mine.keys() == theirs.keys()
    assert all(mine[name].equal(tensor) for name, tensor in theirs.items())
    with pytest.raises(RankError, match="a weight is drawn"):
        job.launch(4, layout, Meddling(never_draws=True))


def test_the_preflight_changes_nothing(tmp_path: Path) -> None:
    attempts, final = [], []
    for preflight in (True, False):
        folder = tmp_path / str(preflight)
        job = SmallJob(folder).changed(
            folder, training={"steps": 12}, checkpoint={"preflight": preflight}
        )
        attempts.append(job.launch(1, TWO))
        assert (f"{JOB}.a1.step-0" in job.committed()) == preflight
        final.append(job.committed()[f"{JOB}.a1.step-12"])
    with_it, without = attempts
    assert with_it.digests == without.digests
    for name in ("train/loss", "train/grad_norm", "train/lr", "train/tokens"):
        assert with_it.values(name) == without.values(name)
    weights = [{f.path: f.xxh3_128 for f in manifest.files} for manifest in final]
    assert weights[0] == weights[1], "weights and optimizer states are bit-equal"


def test_a_resume_with_nothing_left_to_do_saves_nothing_twice(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(tmp_path, training={"steps": 5})
    done = job.launch(1, Layout())
    last = job.committed()[str(done.outcome.checkpoint_id)]
    again = job.launch(2, Layout(), resume=last)
    assert (again.outcome.outcome, again.outcome.step) == ("succeeded", 5)
    assert job.committed()[f"{JOB}.a2.step-5"].kind == "preflight"
    assert not (again.run / "metrics.jsonl").exists()
