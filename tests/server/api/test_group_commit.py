"""Group commit: which requests share a transaction, and the others when one of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable, Sequence
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from server.api.http.group_commit import MAX_TOGETHER, Groups
from server.core.context import Context
from server.core.database.metric_and_log_tables import node_points
from server.core.errors import ConflictError
from server.jobs.attempts.node_heartbeat import node_heartbeats
from tests.server.harness import WORKER, Harness
from trainyard.protocol.node_samples import HostSample, NodeSample
from trainyard.protocol.worker_messages import PROTOCOL, NodeHeartbeat, NodeHeartbeatReply

BAD = -1


class Served:
    """Answers numbers with their double, and records the groups."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []

    def __call__(self, context: Context, items: Sequence[int]) -> list[int | Exception]:
        del context
        self.groups.append([*items])
        if BAD in items:
            raise ValueError("a bad one")
        return [ConflictError("three") if item == 3 else 2 * item for item in items]


def together(
    context: Context, serve: Any, *items: tuple[Any, Hashable]
) -> list[Any | BaseException]:
    """Return the answers to simultaneous requests in one event loop."""

    async def all_of_them() -> list[Any]:
        groups = Groups(context)
        waiting: list[Coroutine[Any, Any, Any]] = [
            groups.queue_of(serve).answer(item, key) for item, key in items
        ]
        return await asyncio.gather(*waiting, return_exceptions=True)

    return asyncio.run(all_of_them())


def test_requests_that_wait_at_the_same_time_are_one_group(context: Context) -> None:
    served = Served()
    numbers = range(10, 10 + 2 * MAX_TOGETHER)
    answers = together(context, served, *((number, None) for number in numbers))
    assert answers == [2 * number for number in numbers]
    assert [len(group) for group in served.groups] == [MAX_TOGETHER, MAX_TOGETHER]


def test_a_request_that_follows_a_group_closely_waits_for_others(context: Context) -> None:
    served = Served()

    async def one_after_another() -> list[int]:
        queue = Groups(context).queue_of(served, gather_seconds=600.0)
        first = await queue.answer(9, None)  # alone, it does not wait
        queue = Groups(context).queue_of(served, gather_seconds=0.5)
        await queue.answer(10, None)
        second = asyncio.create_task(queue.answer(11, None))
        await asyncio.sleep(0)  # the second has begun to wait
        third = asyncio.create_task(queue.answer(12, None))
        return [first, await second, await third]

    assert asyncio.run(one_after_another()) == [18, 22, 24]
    assert served.groups in ([[9], [10], [11, 12]], [[9], [10], [11], [12]])  # a slow machine


def test_a_whole_group_that_waits_waits_for_no_other_request(context: Context) -> None:
    """Thousands of bad tokens delay a later good one by the time of their groups at most."""
    served = Served()

    async def many() -> list[int]:
        queue = Groups(context).queue_of(served, gather_seconds=600.0)
        await queue.answer(9, None)
        waiting: list[Coroutine[Any, Any, int]] = [
            queue.answer(number, None) for number in range(10, 10 + MAX_TOGETHER)
        ]
        return await asyncio.gather(*waiting)

    assert asyncio.run(many()) == [2 * number for number in range(10, 10 + MAX_TOGETHER)]


def test_requests_of_one_key_are_served_in_their_order_and_never_together(
    context: Context,
) -> None:
    served = Served()
    together(context, served, (10, "a"), (11, "a"), (12, "b"), (13, "a"), (14, None))
    assert served.groups == [[10, 12, 14], [11], [13]]


def test_a_refusal_is_that_of_one_request(context: Context) -> None:
    served = Served()
    first, refused, last = together(context, served, (10, None), (3, None), (11, None))
    assert (first, last) == (20, 22)
    assert isinstance(refused, ConflictError)
    assert len(served.groups) == 1


def test_an_error_of_one_request_keeps_no_other_from_its_answer(context: Context) -> None:
    served = Served()
    items = [10, 11, 12, BAD, 13, 14, 15, 16]
    answers = together(context, served, *((item, None) for item in items))
    assert [type(each) for each in answers].count(ValueError) == 1
    assert [each for each in answers if isinstance(each, int)] == [20, 22, 24, 26, 28, 30, 32]
    assert served.groups[-1] == [13, 14, 15, 16]
    assert len(served.groups) == 7  # halves: not one transaction for each request


def test_an_error_of_the_database_answers_each_request_at_once(context: Context) -> None:
    tries: list[int] = []

    def serve(_context: Context, items: Sequence[int]) -> list[int]:
        tries.append(len(items))
        raise OperationalError("BEGIN", None, ConnectionError("no route"))

    answers = together(context, serve, *((number, None) for number in range(20)))
    assert {type(each) for each in answers} == {OperationalError}
    assert len(answers) == 20
    assert tries == [20]


class Panic(BaseException):
    """As compiled code raises it: pydantic's panic is no `Exception` either."""


def test_a_panic_is_the_answer_to_the_request_that_caused_it(context: Context) -> None:
    def serve(_context: Context, items: Sequence[int]) -> list[int]:
        if BAD in items:
            raise Panic("a bad one")
        return [2 * item for item in items]

    answers = together(context, serve, *((item, None) for item in (10, BAD, 11)))
    assert [each for each in answers if isinstance(each, int)] == [20, 22]
    assert isinstance(answers[1], RuntimeError)
    assert isinstance(answers[1].__cause__, Panic)


@pytest.mark.parametrize(
    "answer", [lambda items: items[:1], lambda items: [StopIteration() for _ in items]]
)
def test_no_request_waits_for_an_answer_that_never_comes(context: Context, answer: Any) -> None:
    """A server that omits an answer, and an error that no future accepts."""
    served: list[Sequence[int]] = []

    def serve(_context: Context, items: Sequence[int]) -> Any:
        served.append(items)
        return answer(items)

    answers = together(context, serve, *((item, None) for item in (10, 11, 12)))
    assert {type(each) for each in answers[1:]} == {RuntimeError}
    assert len(served) == 1  # no number is stored twice


def test_a_request_that_is_cancelled_keeps_no_other_from_its_answer(context: Context) -> None:
    served = Served()

    async def one_leaves() -> Any:
        queue = Groups(context).queue_of(served)
        leaving = asyncio.create_task(queue.answer(10, None))
        staying = asyncio.create_task(queue.answer(11, None))
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert asyncio.run(one_leaves()) == 22
    assert served.groups == [[10, 11]]


def test_two_heartbeats_of_a_node_are_both_counted(context: Context, harness: Harness) -> None:
    """The other node's heartbeat shares a transaction with the first one."""
    beats = [(beat(harness.add_node(name)), name) for name in ("node-1", "node-2")]
    replies = together(context, node_heartbeats, beats[0], *beats)
    assert all(isinstance(each, NodeHeartbeatReply) for each in replies), replies
    with context.database.read() as connection:
        rows = connection.execute(node_points.select().where(node_points.c.seconds == 60)).all()
    assert {row.node: row.data["load/"][0] for row in rows} == {"node-1": 2, "node-2": 1}


def beat(node: str) -> NodeHeartbeat:
    host = HostSample(load=1.5, memory_bytes=1000, memory_used_bytes=400)
    return NodeHeartbeat(protocol=PROTOCOL, node=node, worker=WORKER, sample=NodeSample(host=host))


@pytest.mark.parametrize("count", [1, 5])
def test_nothing_waits_once_all_is_answered(context: Context, count: int) -> None:
    async def twice() -> list[int]:
        queue = Groups(context).queue_of(Served())
        first = await asyncio.gather(*(queue.answer(10, None) for _ in range(count)))
        return [*first, await queue.answer(11, None)]

    assert asyncio.run(twice()) == [20] * count + [22]
