"""Long polls: their messages, their end, and messages that wait for a poll."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from server.cluster.inbox.long_polls import NOTHING, READ_AT_ONCE, Inboxes, read_messages
from server.core.context import Context
from server.core.errors import UnavailableError
from server.core.liveness import beat
from server.jobs.checkpoints import service
from server.jobs.jobs.service import stop
from tests.actors import ADA
from tests.server.claims import claim
from tests.server.harness import WORKER, Harness
from tests.server.statements import statements
from tests.server.yard import Yard
from trainyard.protocol.node_sources.messages import MessagesReply
from trainyard.protocol.states import AttemptNodeState, JobState

Result = TypeVar("Result")
LONG = 60.0
"""Longer than any wait of these tests."""


def polled(
    context: Context, act: Callable[[Inboxes], Awaitable[Result]], *, most: int = 100
) -> Result:
    """Return the result of `act` with the long polls of one process."""

    async def run() -> Result:
        inboxes = Inboxes(context, most=most)
        try:
            return await act(inboxes)
        finally:
            await inboxes.stop()

    return asyncio.run(run())


async def is_waiting(inboxes: Inboxes, number: int) -> None:
    await asyncio.sleep(0)  # an earlier task takes its first step
    assert inboxes.waiting == number


def placed(harness: Harness) -> str:
    """Submit and place a job; return the id of its attempt."""
    job_id = harness.submit()
    assert harness.place() == 1
    attempt_id: str = harness.attempt(job_id).id
    return attempt_id


def test_a_node_gets_no_message_through_the_broker(harness: Harness, context: Context) -> None:
    harness.add_node(inbox="server")
    attempt_id = placed(harness)
    harness.reconcile(seconds=30)
    assert harness.dispatcher.sent == []
    assert read_messages(context, ["node-1"]) == {"node-1": MessagesReply(attempts=(attempt_id,))}
    assert read_messages(context, ["node-2"]) == {}


def test_many_polls_are_read_some_at_a_time(harness: Harness, context: Context) -> None:
    harness.add_node(inbox="server")
    attempt_id = placed(harness)
    names = [f"other-{number}" for number in range(2 * READ_AT_ONCE)] + ["node-1"]
    with statements(context) as seen:
        found = read_messages(context, names)
    assert found == {"node-1": MessagesReply(attempts=(attempt_id,))}
    assert len([each for each in seen if "attempt_nodes" in each]) == 3


def test_an_operation_comes_by_the_poll_alone(harness: Harness, context: Context) -> None:
    harness.add_node(inbox="server")
    yard = Yard(harness)
    job_id, _ = harness.running(step=9)
    checkpoint = harness.commit_checkpoint(job_id, 4)
    operation_id = service.verify(context, checkpoint, actor=ADA)
    for _ in range(2):
        assert yard.give() == []
        harness.reconcile(seconds=10)
    found = read_messages(context, ["node-1"])
    assert found == {"node-1": MessagesReply(operations=(operation_id,))}
    yard.claim(operation_id)
    assert read_messages(context, ["node-1"]) == {}


def test_what_waits_is_answered_at_once_and_once_claimed_never_again(
    harness: Harness, context: Context
) -> None:
    harness.add_node(inbox="server")
    attempt_id = placed(harness)
    first = polled(context, lambda inboxes: inboxes.messages("node-1", known=(), wait_seconds=LONG))
    assert first == MessagesReply(attempts=(attempt_id,))
    known = polled(
        context,
        lambda inboxes: inboxes.messages("node-1", known=[attempt_id], wait_seconds=0),
    )
    assert known == NOTHING
    claim(context, attempt_id, node="node-1", worker=WORKER)
    assert read_messages(context, ["node-1"]) == {}


def test_a_poll_waits_for_what_comes_later(harness: Harness, context: Context) -> None:
    harness.add_node(inbox="server")

    async def act(inboxes: Inboxes) -> tuple[MessagesReply, str]:
        waiting = asyncio.ensure_future(
            inboxes.messages("node-1", known=["another"], wait_seconds=LONG)
        )
        await is_waiting(inboxes, 1)
        attempt_id = await asyncio.to_thread(placed, harness)
        return await waiting, attempt_id

    reply, attempt_id = polled(context, act)
    assert reply.attempts == (attempt_id,)


def test_a_poll_ends_empty_in_time(harness: Harness, context: Context) -> None:
    harness.add_node(inbox="server")
    begin = time.monotonic()
    reply = polled(context, lambda i: i.messages("node-1", known=(), wait_seconds=0.05))
    assert reply == NOTHING
    assert time.monotonic() - begin >= 0.05


def test_a_newer_poll_of_a_node_ends_the_older(context: Context) -> None:
    async def act(inboxes: Inboxes) -> None:
        older = asyncio.ensure_future(inboxes.messages("a", known=(), wait_seconds=LONG))
        await is_waiting(inboxes, 1)
        newer = asyncio.ensure_future(inboxes.messages("a", known=(), wait_seconds=LONG))
        assert await older == NOTHING
        assert inboxes.waiting == 1  # the end of the older poll took no message from the newer one
        inboxes.close()
        assert await newer == NOTHING
        assert inboxes.waiting == 0

    polled(context, act)


def test_polls_are_bounded(context: Context) -> None:
    async def act(inboxes: Inboxes) -> None:
        one = asyncio.ensure_future(inboxes.messages("a", known=(), wait_seconds=LONG))
        await is_waiting(inboxes, 1)
        with pytest.raises(UnavailableError, match="1 nodes wait"):
            await inboxes.messages("b", known=(), wait_seconds=LONG)
        again = asyncio.ensure_future(inboxes.messages("a", known=(), wait_seconds=LONG))
        await one
        inboxes.close()
        await again

    polled(context, act, most=1)


def test_one_statement_serves_all_polls(harness: Harness, context: Context) -> None:
    harness.add_node("node-1", inbox="server")
    harness.add_node("node-2", inbox="server")

    async def act(inboxes: Inboxes) -> list[MessagesReply]:
        waiting = [
            asyncio.ensure_future(inboxes.messages(f"node-{n}", known=(), wait_seconds=LONG))
            for n in (1, 2)
        ]
        return await asyncio.gather(*waiting)

    for _ in range(2):
        placed_on = harness.submit(resources={"world_size": 4})
        assert placed_on
    assert harness.place() == 2
    with statements(context) as seen:
        replies = polled(context, act)
    assert [len(reply.attempts) for reply in replies] == [1, 1]
    assert len([s for s in seen if "UNION ALL" in s]) == 1


def test_a_database_that_is_away_ends_no_poll(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.add_node(inbox="server")
    attempt_id = placed(harness)
    read = read_messages
    failures = iter([OSError("away")])

    def fails_once(*arguments: object) -> object:
        for error in failures:
            raise error
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("server.cluster.inbox.long_polls.read_messages", fails_once)
    monkeypatch.setattr("server.cluster.inbox.long_polls.AWAY_SECONDS", 0.01)
    reply = polled(context, lambda i: i.messages("node-1", known=(), wait_seconds=LONG))
    assert reply.attempts == (attempt_id,)


def test_an_attempt_that_is_stopped_before_its_claim_is_not_brought(
    harness: Harness, context: Context
) -> None:
    harness.add_node(inbox="server")
    job_id = harness.submit()
    harness.place()
    stop(context, job_id, reason="", actor=ADA)
    assert read_messages(context, ["node-1"]) == {}


def test_the_time_to_claim_does_not_depend_on_the_broker(
    harness: Harness, context: Context
) -> None:
    beat(context)
    harness.add_node(inbox="server")
    job_id = harness.submit(retry={"max_retries": 0})
    harness.place()
    harness.dispatcher.up_since = None  # the broker is down
    harness.reconcile(seconds=119)
    assert harness.shares(job_id)[0].state == AttemptNodeState.PLACED
    harness.reconcile(seconds=2)
    assert harness.shares(job_id)[0].state == AttemptNodeState.ENDED
    assert "did not claim" in harness.attempt(job_id).failure.message


def test_a_node_of_the_broker_keeps_its_time_while_the_broker_is_down(harness: Harness) -> None:
    harness.add_node("by-broker")
    job_id = harness.submit()
    harness.place()
    harness.dispatcher.up_since = None
    harness.reconcile(seconds=300)
    assert harness.job(job_id).state == JobState.STARTING
