"""Scrubbing: the checkpoint verified longest ago, one at a time, on idle nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from server.app.periodic_tasks import TASKS
from server.core.context import Context
from server.jobs.checkpoints import service
from server.scheduler.rounds.operations import OperationKeeper
from tests.actors import ADA
from tests.server.periodic import Repeated
from tests.server.yard import Yard
from trainyard.protocol.operations import OperationKind, OperationOutcome
from trainyard.run.checkpoint_faults import CheckpointFault

DAY = 86_400


@pytest.fixture
def scrubbing(yard: Yard, context: Context) -> Yard:
    """A server that scrubs every checkpoint once in seven days."""
    settings = context.settings.model_copy(update={"scrub_interval_days": 7.0})
    harness = yard.harness
    harness.keeper = OperationKeeper(replace(context, settings=settings), harness.dispatcher)
    every = TASKS["queue_scrub"].every_seconds
    harness.scrubs = Repeated(harness.clock, harness.keeper.queue_scrub, every=every)
    return yard


def ended(yard: Yard, *steps: int) -> tuple[str, list[str]]:
    job_id, (supervisor,) = yard.harness.running(step=9)
    found = []
    for step in steps:
        found.append(yard.harness.commit_checkpoint(job_id, step))
        yard.harness.clock.advance(60)
    supervisor.end("succeeded")
    return job_id, found


def test_the_oldest_is_scrubbed_first_and_each_once(scrubbing: Yard) -> None:
    job_id, (one, two) = ended(scrubbing, 4, 8)
    assert scrubbing.give() == []
    scrubbing.harness.clock.advance(8 * DAY)
    for checkpoint in (one, two):
        scrubbing.harness.clock.advance(61)
        ((operation_id, _),) = scrubbing.give()
        assert scrubbing.operation(operation_id).kind == OperationKind.SCRUB
        assert scrubbing.operation(operation_id).checkpoint_id == checkpoint
        assert scrubbing.operation(operation_id).reason == "not looked at for 7 days"
        scrubbing.harness.clock.advance(1)
        scrubbing.give()
        assert len(scrubbing.operations(state="queued")) == 1
        scrubbing.harness.clock.advance(4)
        scrubbing.do(operation_id, load=False)
    scrubbing.harness.clock.advance(61)
    assert scrubbing.give() == []
    assert all(row.verified for row in scrubbing.checkpoints(job_id).values())


def test_a_clock_that_is_set_back_ends_no_scrubs(scrubbing: Yard) -> None:
    _, (one, two) = ended(scrubbing, 4, 8)
    scrubbing.harness.clock.advance(9 * DAY)
    ((operation_id, _),) = scrubbing.give()
    scrubbing.harness.clock.advance(5)
    scrubbing.do(operation_id, load=False)
    scrubbing.harness.clock.set(-3600)
    scrubbing.harness.clock.advance(60)
    ((operation_id, _),) = scrubbing.give()
    assert {one, two} >= {scrubbing.operation(operation_id).checkpoint_id}
    scrubbing.harness.clock.advance(-3600)
    assert [again for again, _ in scrubbing.give()] == [operation_id], "its message, once more"


def test_that_all_was_loaded_once_stays_known(scrubbing: Yard, context: Context) -> None:
    job_id, (one,) = ended(scrubbing, 4)
    scrubbing.do(service.verify(context, one, actor=ADA))
    loaded = context.now()
    scrubbing.harness.clock.advance(8 * DAY)
    ((operation_id, _),) = scrubbing.give()
    scrubbing.harness.clock.advance(5)
    scrubbing.do(operation_id, load=False)
    found = scrubbing.checkpoints(job_id)[one].verification
    assert (found.loaded_at, found.loaded_on, found.at) == (loaded, 2, context.now())


def test_a_scrub_that_finds_damage_takes_the_good_word_back(
    scrubbing: Yard, context: Context
) -> None:
    job_id, (one,) = ended(scrubbing, 4)
    scrubbing.do(service.verify(context, one, actor=ADA))
    scrubbing.harness.clock.advance(8 * DAY)
    ((operation_id, _),) = scrubbing.give()
    scrubbing.harness.clock.advance(5)
    scrubbing.do(operation_id, fault=CheckpointFault.FILE_MISSING)
    row = scrubbing.checkpoints(job_id)[one]
    assert row.verified is False
    assert row.verification.loaded_at is None
    scrubbing.harness.clock.advance(8 * DAY)
    assert scrubbing.give() == []  # its damage is already known


def test_a_node_that_trains_is_left_alone(scrubbing: Yard) -> None:
    ended(scrubbing, 4)
    scrubbing.harness.clock.advance(8 * DAY)
    scrubbing.harness.running()
    assert scrubbing.give() == []
    assert len(scrubbing.operations(state="queued")) == 1


def test_a_scrub_that_fails_is_repeated_and_keeps_no_other_from_its_turn(scrubbing: Yard) -> None:
    job_id, (one, two) = ended(scrubbing, 4, 8)
    scrubbing.harness.clock.advance(8 * DAY)
    ((first, _),) = scrubbing.give()
    failed = OperationOutcome(outcome="failed", message="the storage does not answer")
    scrubbing.report(first, fence=scrubbing.claim(first).fence, outcome=failed)
    scrubbing.harness.clock.advance(61)
    given = scrubbing.operations(state="queued")
    assert [row.id for row in given] == [first]
    ids = {operation_id for operation_id, _ in scrubbing.give()}
    second = next(row.id for row in scrubbing.operations(state="queued") if row.id != first)
    assert scrubbing.operation(second).checkpoint_id == two
    for operation_id in sorted(ids | {first, second}):
        scrubbing.harness.clock.advance(6)
        scrubbing.do(operation_id, load=False)
    assert all(row.verified for row in scrubbing.checkpoints(job_id).values())
    assert {one, two} == set(scrubbing.checkpoints(job_id))


def test_it_is_off_by_default(yard: Yard) -> None:
    ended(yard, 4)
    yard.harness.clock.advance(1000 * DAY)
    assert yard.give() == []
    assert yard.operations() == []
