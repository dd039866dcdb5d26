"""Retention: which checkpoints are deleted, and that no needed one ever is."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from sqlalchemy import text

from server.core.context import Context
from server.jobs.checkpoints import service
from server.jobs.checkpoints.deletion import Candidate, deletable
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import stop
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.store import store_points
from tests.actors import ADA
from tests.server.yard import Yard
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.failures import FailureReason
from trainyard.spec.sections.checkpoint import CheckpointSection

CANDIDATES = st.lists(
    st.builds(
        lambda attempt, step, verified, protected, value: Candidate(
            f"a{attempt}.step-{step}",
            attempt,
            step,
            verified,
            protected=protected,
            value=value or None,
            awaited=value == 0,
        ),
        st.integers(1, 4),
        st.integers(0, 12),
        st.sampled_from([None, True, False]),
        st.booleans(),
        st.sampled_from([None, 0.0, 1.0, 2.0, 3.0]),
    ),
    unique_by=lambda candidate: candidate.id,
    max_size=20,
)
SECTIONS = st.builds(
    lambda latest, every, best: CheckpointSection(
        keep_latest_k=latest, keep_every_steps=every, keep_best_k=best
    ),
    st.integers(0, 4),
    st.integers(0, 5),
    st.integers(0, 3),
)


@given(section=SECTIONS, candidates=CANDIDATES)
def test_what_is_needed_never_goes(section: CheckpointSection, candidates: list[Candidate]) -> None:
    going = deletable(section, candidates)
    kept = [candidate for candidate in candidates if candidate not in going]
    sound = [candidate for candidate in candidates if candidate.verified is not False]
    assert not any(candidate.protected for candidate in going)
    assert bool(kept) == bool(candidates)
    if sound:
        assert max(sound, key=lambda candidate: candidate.order) in kept
    if any(candidate.verified for candidate in candidates):
        assert any(candidate.verified for candidate in kept)
    if section.keep_latest_k == 0:
        assert going == []
    else:
        newest = sorted({c.step for c in sound}, reverse=True)[: section.keep_latest_k]
        assert {candidate.step for candidate in kept} >= set(newest)
    for step in {c.step for c in sound if section.keep_every_steps}:
        if step and step % section.keep_every_steps == 0:
            assert any(candidate.step == step for candidate in kept)


@given(section=SECTIONS, candidates=CANDIDATES)
def test_a_second_decision_finds_nothing_more(
    section: CheckpointSection, candidates: list[Candidate]
) -> None:
    going = deletable(section, candidates)
    assert deletable(section, [c for c in candidates if c not in going]) == []


@given(section=SECTIONS.filter(lambda s: s.keep_latest_k), candidates=CANDIDATES)
def test_a_checkpoint_that_no_rule_keeps_is_deleted(
    section: CheckpointSection, candidates: list[Candidate]
) -> None:
    """The k newest steps, the newest verified one and protected ones stay."""
    plain = section.model_copy(update={"keep_every_steps": 0, "keep_best_k": 0})
    kept = len(candidates) - len(deletable(plain, candidates))
    protected = sum(candidate.protected for candidate in candidates)
    assert kept <= protected + section.keep_latest_k + 1


def test_of_equal_values_the_newer_one_is_the_better() -> None:
    section = CheckpointSection(keep_latest_k=1, keep_best_k=1)
    values = {2: 3.0, 4: 1.0, 6: 1.0, 8: 2.0}
    candidates = [Candidate(f"c{step}", 1, step, value=value) for step, value in values.items()]
    assert [candidate.id for candidate in deletable(section, candidates)] == ["c2", "c4"]


def test_every_step_but_the_first_is_a_multiple_of_one() -> None:
    section = CheckpointSection(keep_latest_k=1, keep_every_steps=1)
    candidates = [Candidate(f"c{step}", 1, step) for step in range(4)]
    assert [candidate.id for candidate in deletable(section, candidates)] == ["c0"]


def test_one_verified_checkpoint_is_enough() -> None:
    section = CheckpointSection(keep_latest_k=1)
    pinned = Candidate("c2", 1, 2, verified=True, protected=True)
    verified = [Candidate(f"c{step}", 1, step, verified=True) for step in (4, 6)]
    newest = Candidate("c8", 1, 8)
    assert deletable(section, [pinned, *verified, newest]) == verified
    assert deletable(section, [*verified, newest]) == verified[:1]


def test_of_one_step_the_newest_attempt_counts() -> None:
    section = CheckpointSection(keep_latest_k=1)
    candidates = [Candidate(f"a{attempt}", attempt, 4) for attempt in (2, 3, 1)]
    assert [candidate.id for candidate in deletable(section, candidates)] == ["a1", "a2"]


def test_of_damaged_ones_alone_the_newest_stays_for_a_person_to_decide() -> None:
    section = CheckpointSection(keep_latest_k=3)
    candidates = [Candidate(f"c{step}", 1, step, verified=False) for step in (6, 2, 4)]
    assert [candidate.id for candidate in deletable(section, candidates)] == ["c2", "c4"]


def keeping(latest: int, every: int = 0) -> dict[str, Any]:
    section = {"interval_steps": 1, "keep_latest_k": latest, "keep_every_steps": every}
    return {"checkpoint": section}


@pytest.mark.parametrize(
    ("latest", "every", "kept"),
    [
        (0, 0, ["a1.step-0", "a1.step-2", "a1.step-4", "a1.step-6", "a1.step-8"]),
        (2, 0, ["a1.step-6", "a1.step-8"]),
        (1, 4, ["a1.step-4", "a1.step-8"]),
    ],
)
def test_commits_make_older_ones_go(yard: Yard, latest: int, every: int, kept: list[str]) -> None:
    job_id, _ = yard.harness.running(step=9, **keeping(latest, every))
    yard.commit(job_id, 0, 2, 4, 6, 8)
    assert yard.kept(job_id) == kept
    going = yard.operations()
    assert len(going) == 5 - len(kept)
    assert {operation.actor for operation in going} <= {"retention"}
    assert all(f"keep_latest_k={latest}" in operation.reason for operation in going)


def test_the_best_stay_too_and_nothing_goes_before_it_was_measured(
    yard: Yard, context: Context
) -> None:
    harness = yard.harness
    section = {"keep_latest_k": 1, "keep_best_k": 2, "keep_best_metric": "train/loss"}
    job_id, (supervisor,) = harness.running(step=9, checkpoint=section | {"interval_steps": 1})

    def log(**losses: float) -> None:
        values = {int(step.removeprefix("at_")): loss for step, loss in losses.items()}
        points = Points.of(values, [0.0] * len(values), values.values())
        with context.database.write() as connection:
            store_points(connection, harness.attempt(job_id).id, {"train/loss": points})

    log(at_1=9.0, at_2=3.0)
    yard.commit(job_id, 2, 4, 6)
    assert yard.kept(job_id) == ["a1.step-2", "a1.step-4", "a1.step-6"], "4 may be better yet"
    log(at_4=1.0, at_5=0.1, at_6=math.nan, at_8=2.0)
    yard.commit(job_id, 8, 10)
    assert yard.kept(job_id) == ["a1.step-10", "a1.step-4", "a1.step-8"]
    assert "keep_best_k=2 by train/loss" in yard.operations()[0].reason
    # A checkpoint that the next attempt wrote of the same step has the same value.
    log(at_10=0.5)
    supervisor.end("failed", FailureReason.TRAINER_ERROR)
    harness.clock.advance(60)
    harness.place()
    harness.claim_all(job_id)[0].train(11)
    yard.commit(job_id, 10)
    log(at_11=4.0, at_12=4.0)
    yard.commit(job_id, 12)
    assert yard.kept(job_id) == ["a1.step-4", "a2.step-10", "a2.step-12"]


def test_pins_and_good_words_count(yard: Yard, context: Context) -> None:
    job_id, _ = yard.harness.running(step=9, **keeping(1))
    yard.commit(job_id, 2)
    service.set_pin(context, f"{job_id}.a1.step-2", pinned=True, actor=ADA)
    yard.commit(job_id, 4)
    yard.do(service.verify(context, f"{job_id}.a1.step-4", actor=ADA))
    yard.commit(job_id, 6)
    assert yard.kept(job_id) == ["a1.step-2", "a1.step-4", "a1.step-6"]
    yard.do(service.verify(context, f"{job_id}.a1.step-6", actor=ADA))
    service.set_pin(context, f"{job_id}.a1.step-2", pinned=False, actor=ADA)
    yard.commit(job_id, 8)
    assert yard.kept(job_id) == ["a1.step-6", "a1.step-8"]


def test_a_damaged_one_is_no_newest(yard: Yard, context: Context) -> None:
    job_id, _ = yard.harness.running(step=9, **keeping(2))
    yard.commit(job_id, 2, 4)
    look = service.verify(context, f"{job_id}.a1.step-4", actor=ADA)
    yard.do(look, fault=CheckpointFault.FILE_DAMAGED)
    yard.commit(job_id, 6)
    assert yard.kept(job_id) == ["a1.step-2", "a1.step-6"]


def test_what_an_attempt_loads_stays_until_its_first_step(yard: Yard, context: Context) -> None:
    job_id, (supervisor,) = yard.harness.running(step=9, **keeping(1))
    yard.commit(job_id, 2)
    service.set_pin(context, f"{job_id}.a1.step-2", pinned=True, actor=ADA)
    yard.commit(job_id, 8)
    stop(context, job_id, actor=ADA, reason="")
    supervisor.end("stopped")
    service.set_pin(context, f"{job_id}.a1.step-2", pinned=False, actor=ADA)
    resume(context, job_id, ResumeRequest(checkpoint_id=f"{job_id}.a1.step-2"), actor=ADA)
    yard.harness.place()
    (second,) = yard.harness.claim_all(job_id)
    yard.commit(job_id, 2)  # the preflight of the second attempt
    assert yard.kept(job_id) == ["a1.step-2", "a1.step-8", "a2.step-2"]
    second.train(3)
    yard.commit(job_id, 4)
    # Only a person deletes an abandoned branch.
    assert yard.kept(job_id) == ["a1.step-8", "a2.step-4"]


def test_an_unreadable_launch_of_another_job_refuses_no_commit(
    yard: Yard, context: Context
) -> None:
    job_id, _ = yard.harness.running(checkpoint={"keep_latest_k": 1})
    other = yard.harness.submit()
    with context.database.write() as connection:
        connection.execute(
            text("UPDATE jobs SET pending = :launch WHERE id = :id"),
            {"launch": '["of a later version"]', "id": other},
        )
    yard.commit(job_id, 2, 4)
    assert yard.kept(job_id) == ["a1.step-4"]
