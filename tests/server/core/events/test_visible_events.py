"""Which events and notices a stream has for whom: by the project of a job, or by a permission."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from server.core.context import Context
from server.core.events.notices import notify, read_notices
from server.core.events.shares import Holder
from server.core.events.store import NewEvent, append_event
from server.core.events.stream import follow
from server.core.events.tail import StreamMessage, Subscription, Tail, read_frames
from server.core.subject import SERVER, Subject
from server.core.visibility.job_labels import label
from server.core.visibility.scope import NO_SCOPE, SYSTEM_SCOPE, Scope
from server.jobs.jobs.service import delete, stop
from tests.actors import ADA
from tests.server.harness import Harness
from tests.server.members import OURS, THEIRS, add_projects, scope_with
from trainyard.protocol.rest.event_data import Reachable, Waiting
from trainyard.protocol.user_accounts.views import ClusterRole

VIEWER = scope_with(ours="viewer")
NOBODY = scope_with()
OPERATOR = scope_with(cluster=ClusterRole.OPERATOR)
ADMINS = scope_with(cluster=ClusterRole.ADMIN)


@pytest.fixture
def happened(context: Context, harness: Harness) -> dict[str, str]:
    """Ids of a job in each project, with events of every kind."""
    add_projects(context)
    jobs = {name: harness.submit(project=name, name=f"job-{name}") for name in (OURS, THEIRS)}
    gone = {name: harness.submit(project=name, name=f"gone-{name}") for name in (OURS, THEIRS)}
    for job_id in gone.values():
        stop(context, job_id, actor=ADA, reason="")
        delete(context, job_id, actor=ADA, checkpoints="keep")
    subjects = (Subject(node="node-1"), Subject(), Subject("0" * 26))
    with context.database.write() as connection:
        for subject in subjects:
            append_event(context, connection, NewEvent(Reachable(), SERVER, subject, "it is back"))
        for job_id in jobs.values():
            notify(context, connection, subject=Subject(job_id), data=Waiting(reason="no slot"))
    return jobs


def frames(context: Context, scope: Scope) -> list[StreamMessage]:
    with context.database.read() as connection:
        return read_frames(connection, after=0, scope=scope)


@pytest.mark.parametrize("scope", [VIEWER, NOBODY, OPERATOR, ADMINS, SYSTEM_SCOPE, NO_SCOPE])
def test_the_replay_and_the_live_stream_show_the_same(
    context: Context, happened: dict[str, str], scope: Scope
) -> None:
    every = frames(context, SYSTEM_SCOPE)
    assert frames(context, scope) == [each for each in every if each.is_for(scope)]


def seen(context: Context, scope: Scope) -> set[tuple[str | None, str | None, bool]]:
    return {(f.project, f.node, f.job_id is not None) for f in frames(context, scope)}


def test_a_member_sees_events_of_the_own_jobs_and_projects(
    context: Context, happened: dict[str, str]
) -> None:
    node, source = (None, "node-1", False), (None, None, False)
    assert seen(context, VIEWER) == {(OURS, None, True), (OURS, None, False), node, source}
    assert seen(context, NOBODY) == {node, source}
    named = {(name, None, False) for name in (OURS, THEIRS)}
    assert seen(context, OPERATOR) == {*named, node, source}
    assert seen(context, NO_SCOPE) == set()
    unknown = (None, None, True)  # the job was deleted before events had projects
    assert unknown in seen(context, ADMINS)


def test_the_end_of_a_deleted_job_reaches_its_project(
    context: Context, happened: dict[str, str]
) -> None:
    kinds = [f for f in frames(context, VIEWER) if b"job_deleted" in f.content]
    assert [each.project for each in kinds] == [OURS]


def test_notices_have_the_project_of_their_job(context: Context, happened: dict[str, str]) -> None:
    with context.database.read() as connection:
        for scope, names in ((VIEWER, {OURS}), (NOBODY, set()), (ADMINS, {OURS, THEIRS})):
            rows = read_notices(connection, since=context.now(), job_id=None, scope=scope)
            assert {row.project for row in rows} == names


def test_a_stream_renders_names_for_its_client(context: Context, harness: Harness) -> None:
    add_projects(context)
    job_id = harness.submit(project=OURS)
    asyncio.run(_renders(context, job_id))


async def _renders(context: Context, job_id: str) -> None:
    tail = Tail(context)
    tail.start()
    try:
        stream = follow(
            context,
            tail,
            last_event_id=None,
            job_id=None,
            holder=Holder("ada", None),
            scope=VIEWER,
        )
        assert await anext(stream) == b"retry: 1000\n\n"
        await anext(stream)
        message = f"waits for {label(THEIRS, 'secret')}, not {label(OURS, 'open')}"
        event = NewEvent(Reachable(), SERVER, Subject(job_id), message)
        with context.database.write() as connection:
            append_event(context, connection, event)
        assert b"waits for another project's job, not open" in await anext(stream)
        await stream.aclose()
    finally:
        tail.stop()


def test_a_changed_role_reaches_messages_that_wait(
    context: Context, happened: dict[str, str]
) -> None:
    asyncio.run(_waits([f for f in frames(context, VIEWER) if f.project == OURS]))


async def _waits(messages: list[StreamMessage]) -> None:
    subscription = Subscription(position=0, job_id=None, holder=Holder("ada", None), scope=VIEWER)
    subscription.add(messages)
    subscription.see(NOBODY)
    assert await subscription.take() == ()
    subscription.add(messages)
    subscription.see(VIEWER)
    subscription.add(messages[:1])
    assert await subscription.take() == tuple(messages[:1])


def test_a_client_that_sees_other_projects_reloads_its_state(context: Context) -> None:
    asyncio.run(_sees_another_project(context))


async def _sees_another_project(context: Context) -> None:
    tail = Tail(context)
    opened: list[Subscription] = []

    @contextmanager
    def watched(subscription: Subscription) -> Iterator[None]:
        opened.append(subscription)
        yield

    stream = follow(
        context,
        tail,
        last_event_id=None,
        job_id=None,
        holder=Holder("ada", None),
        scope=NOBODY,
        watched=watched,
    )
    assert [await anext(stream) for _ in range(2)] == [b"retry: 1000\n\n", b"id: 0\n\n"]
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.to_thread(opened[0].see, VIEWER)
    assert await waiting == b"event: reset\nid: 0\ndata: {}\n\n"
    await stream.aclose()
