"""Repeated launch messages: pauses, and repeats while the first one is still in transit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update

from server.core.context import Context
from server.core.database.tables import nodes
from server.core.liveness import beat
from server.scheduler.rounds.reconcile import Reconciler
from tests.server.harness import Harness, Supervisor
from trainyard.protocol.states import JobState
from trainyard.protocol.worker_messages import OLDEST_PROTOCOL, LaunchMessage
from trainyard.run.failures import FailureReason


@pytest.fixture(autouse=True)
def up(context: Context) -> None:
    """Servers are up, and have been for long."""
    beat(context)


def test_an_unclaimed_launch_is_sent_again_and_then_given_up(harness: Harness) -> None:
    harness.add_node()
    job_id = harness.submit(retry={"max_retries": 0})
    harness.place()
    assert len(harness.dispatcher.sent) == 1
    harness.reconcile(seconds=4)
    assert len(harness.dispatcher.sent) == 1
    harness.reconcile(seconds=1)
    assert len(harness.dispatcher.sent) == 2
    harness.reconcile()
    assert len(harness.dispatcher.sent) == 2, "once in each pause"
    passed = 5
    for sent, at in ((3, 15), (4, 35), (5, 75)):
        harness.reconcile(seconds=at - passed - 1)
        assert len(harness.dispatcher.sent) == sent - 1
        harness.reconcile(seconds=1)
        assert len(harness.dispatcher.sent) == sent, "pauses of 5, 10, 20 and 40 seconds"
        passed = at
    harness.reconcile(seconds=44)
    assert harness.job(job_id).state == JobState.STARTING
    harness.reconcile(seconds=1)
    assert harness.job(job_id).state == JobState.FAILED
    assert harness.attempt(job_id).failure.reason == FailureReason.LAUNCH_ERROR
    assert harness.attempt(job_id).failure.node_at_fault


def test_a_launch_for_a_worker_that_is_not_served_is_put_back(
    harness: Harness, context: Context
) -> None:
    """A job that was placed before the upgrade keeps its retries, and its node is not to blame."""
    harness.add_node("old")
    job_id = harness.submit(retry={"max_retries": 0})
    harness.place()
    with context.database.write() as connection:
        connection.execute(update(nodes).values(protocol=OLDEST_PROTOCOL - 1))
    harness.reconcile(seconds=context.settings.claim_seconds)
    assert harness.job(job_id).state == JobState.QUEUED
    assert harness.job(job_id).retries_used == 0
    failure = harness.attempt(job_id).failure
    assert (failure.reason, failure.node_at_fault) == (FailureReason.LAUNCH_ERROR, False)
    assert failure.remedy.text == "Upgrade the worker of old."
    harness.add_node("new")
    harness.clock.advance(1)
    assert harness.place() == 1
    assert [share.node for share in harness.shares(job_id)][-1] == "new"


def test_a_clock_that_is_set_back_holds_no_message_back(harness: Harness) -> None:
    harness.add_node()
    job_id = harness.submit(retry={"max_retries": 0})
    harness.place()
    harness.clock.advance(-3600)
    harness.reconcile()
    assert len(harness.dispatcher.sent) == 2
    harness.reconcile(seconds=harness.context.settings.claim_seconds + 1)
    assert harness.attempt(job_id).failure.reason == FailureReason.LAUNCH_ERROR, "given up in time"


def test_a_broker_that_came_up_before_the_clock_was_set_back_fails_no_round(
    harness: Harness,
) -> None:
    harness.dispatcher.up_since = harness.context.now()
    harness.add_node()
    job_id = harness.submit(retry={"max_retries": 0})
    harness.place()
    harness.clock.advance(-3600)
    harness.reconcile()
    assert harness.job(job_id).state == JobState.STARTING
    harness.reconcile(seconds=harness.context.settings.claim_seconds + 1)
    assert harness.job(job_id).state == JobState.FAILED, "given up in time"


def test_pauses_between_messages_end_at_a_minute(harness: Harness) -> None:
    """By then the earlier message has expired; a claim may take longer than usual."""
    settings = harness.context.settings.model_copy(update={"claim_seconds": 1000.0})
    context = replace(harness.context, settings=settings)
    reconciler = Reconciler(context, harness.dispatcher)
    harness.add_node()
    harness.submit()
    harness.place()
    sent_at = [0]
    for second in range(1, 300):
        harness.clock.advance(1)
        beat(context)
        reconciler.run()
        if len(harness.dispatcher.sent) > len(sent_at):
            sent_at.append(second)
    assert sent_at == [0, 5, 15, 35, 75, 135, 195, 255]


def test_a_node_that_still_claims_earlier_launches_gets_no_second_message(
    harness: Harness,
) -> None:
    """It processes messages in order; each further one would be a refused claim."""
    harness.add_node("a", slots=8)
    attempts = [launch(harness) for _ in range(4)]
    for attempt_id in attempts[:3]:
        harness.reconcile(seconds=4)
        Supervisor(harness, attempt_id, node="a")
    assert len(harness.dispatcher.sent) == 4, "12 s, and it claimed another one every 4 s"
    harness.reconcile(seconds=5)
    assert harness.dispatcher.sent[4:] == [LaunchMessage(attempt_id=attempts[3], node="a")]


def test_a_message_that_a_later_one_has_overtaken_is_sent_again(harness: Harness) -> None:
    harness.add_node("a", slots=8)
    lost = launch(harness)
    harness.clock.advance(1)
    later = launch(harness)
    harness.clock.advance(3)
    Supervisor(harness, later, node="a")
    harness.reconcile(seconds=1)
    assert harness.dispatcher.sent[2:] == [LaunchMessage(attempt_id=lost, node="a")]


def test_a_busy_node_gets_a_message_again_when_the_first_one_has_expired(harness: Harness) -> None:
    harness.add_node("a", slots=40)
    attempts = [launch(harness) for _ in range(30)]
    for attempt_id in attempts[:20]:
        Supervisor(harness, attempt_id, node="a")
        harness.reconcile(seconds=3)
    sent = [message.attempt_id for message in harness.dispatcher.sent[30:]]
    assert sorted(sent) == sorted(attempts[20:])


def launch(harness: Harness) -> str:
    """Submit a job and place it; return its attempt."""
    job_id = harness.submit()
    harness.place()
    return str(harness.attempt(job_id).id)


def test_a_broker_that_came_back_gets_the_message_soon(harness: Harness) -> None:
    """It may have lost accepted messages."""
    harness.add_node()
    harness.submit()
    harness.place()
    for _ in range(80):
        harness.reconcile(seconds=1)
    sent = len(harness.dispatcher.sent)
    harness.dispatcher.up_since = harness.clock.now()
    harness.reconcile(seconds=5)
    assert len(harness.dispatcher.sent) == sent + 1
