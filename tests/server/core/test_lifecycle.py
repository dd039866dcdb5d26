"""State transitions: every legal one appends its event, every other one changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import pytest
from sqlalchemy import Table, func, insert, select, update

from server.core.context import Context
from server.core.database.tables import attempt_nodes, attempts, events, jobs, operations
from server.core.errors import NotFoundError
from server.core.events.store import NewEvent
from server.core.lifecycle import (
    IllegalMoveError,
    Move,
    attempt_to,
    job_to,
    lock_job,
    lock_job_of,
    move,
    node_to,
    operation_to,
)
from server.core.subject import Subject
from tests.actors import ADA, TESTER
from tests.server.harness import Harness
from trainyard.protocol.operations import OperationKind, OperationTask
from trainyard.protocol.rest.event_data import Claimed, StopRequested
from trainyard.protocol.states import (
    ATTEMPT_MOVES,
    ATTEMPT_NODE_MOVES,
    JOB_MOVES,
    OPERATION_MOVES,
    TERMINAL_JOB_STATES,
    AttemptNodeState,
    AttemptState,
    JobState,
    OperationState,
)

Moves = Mapping[Any, frozenset[Any]]
RECORDS: list[tuple[Table, type[StrEnum], Moves, Callable[[str, str, Any], Move]]] = [
    (jobs, JobState, JOB_MOVES, lambda job, _attempt, to: job_to(job, to)),
    (attempts, AttemptState, ATTEMPT_MOVES, lambda _job, attempt, to: attempt_to(attempt, to)),
    (
        attempt_nodes,
        AttemptNodeState,
        ATTEMPT_NODE_MOVES,
        lambda _job, attempt, to: node_to(attempt, "node-1", to),
    ),
    (operations, OperationState, OPERATION_MOVES, lambda job, _attempt, to: operation_to(job, to)),
]


@pytest.fixture
def placed(context: Context, harness: Harness) -> tuple[str, str]:
    """Ids of a job and of its attempt; the job has an operation with the same id."""
    harness.add_node()
    job_id = harness.submit()
    harness.place()
    operation = {
        "id": job_id,
        "kind": "delete",
        "state": OperationState.QUEUED,
        "job_id": job_id,
        "job_name": "tiny",
        "actor": "test",
        "reason": "because",
        "task": OperationTask(
            kind=OperationKind.DELETE, job_id=job_id, root="checkpoints", paths=()
        ),
        "created_at": context.now(),
    }
    with context.database.write() as connection:
        connection.execute(insert(operations).values(operation))
    return job_id, harness.attempt(job_id).id


@pytest.mark.parametrize(
    ("table", "states", "moves", "make"),
    RECORDS,
    ids=["job", "attempt", "attempt-node", "operation"],
)
def test_every_move(
    context: Context,
    harness: Harness,
    placed: tuple[str, str],
    table: Table,
    states: type[StrEnum],
    moves: Moves,
    make: Callable[[str, str, Any], Move],
) -> None:
    job_id, attempt_id = placed
    for source in states:
        for target in states:
            put(context, table, source)
            before, count = harness.dump(), events_stored(context)
            if target in moves[source]:
                try_move(context, job_id, make(job_id, attempt_id, target))
                assert state_of(context, table) == target
                assert events_stored(context) == count + 1
                continue
            with pytest.raises(IllegalMoveError, match=f"is {source} and cannot become {target}"):
                try_move(context, job_id, make(job_id, attempt_id, target))
            assert harness.dump() == before


def test_moves_that_belong_together_happen_together(
    context: Context, harness: Harness, placed: tuple[str, str]
) -> None:
    job_id, attempt_id = placed
    before = harness.dump()
    with pytest.raises(IllegalMoveError):
        try_move(
            context,
            job_id,
            attempt_to(attempt_id, AttemptState.STARTING),
            job_to(job_id, JobState.STARTING),  # already in this state
        )
    assert harness.dump() == before


def test_a_caller_may_narrow_a_move(context: Context, placed: tuple[str, str]) -> None:
    job_id, _ = placed
    narrowed = job_to(job_id, JobState.QUEUED, only_from=TERMINAL_JOB_STATES)
    with pytest.raises(IllegalMoveError):  # legal for a retry, not for a resume
        try_move(context, job_id, narrowed)
    put(context, jobs, JobState.FAILED)
    try_move(context, job_id, narrowed)
    assert state_of(context, jobs) == JobState.QUEUED


def test_a_move_changes_the_columns_that_it_names(
    context: Context, harness: Harness, placed: tuple[str, str]
) -> None:
    job_id, attempt_id = placed
    now = harness.clock.advance(7)
    try_move(
        context,
        job_id,
        job_to(job_id, JobState.QUEUED, reason="again"),
        attempt_to(attempt_id, AttemptState.ENDED, ended_at=now),
        node_to(attempt_id, "node-1", AttemptNodeState.ENDED, last_report_at=now),
        operation_to(job_id, OperationState.RUNNING, node="node-1"),
    )
    job = harness.job(job_id)
    assert (job.reason, job.demand) == ("again", None), "the next launch may need something else"
    assert harness.attempt(job_id).ended_at == now
    assert harness.shares(job_id)[0].last_report_at == now
    with context.database.read() as connection:
        assert connection.scalar(select(operations.c.node)) == "node-1"


def test_a_job_leaves_its_group_with_its_state(
    context: Context, harness: Harness, placed: tuple[str, str]
) -> None:
    job_id, _ = placed
    with context.database.write() as connection:
        connection.execute(update(jobs).values(demand="group"))
    try_move(context, job_id, job_to(job_id, JobState.RUNNING))
    assert harness.job(job_id).demand is None


def test_the_event_of_a_move_has_every_field_that_is_given(
    context: Context, harness: Harness, placed: tuple[str, str]
) -> None:
    job_id, _ = placed
    with context.database.write() as connection:
        event = NewEvent(
            StopRequested(reason="enough"),
            ADA,
            Subject(job_id, attempt=3, node="node-1"),
            "node-1 took it",
        )
        move(context, connection, event, job_to(job_id, JobState.RUNNING))
        stored = connection.execute(select(events).order_by(events.c.id.desc()).limit(1)).one()
    fields = {"kind", "message", "actor", "job_id", "attempt", "node", "data"}
    assert {name: stored._mapping[name] for name in fields} == {
        "kind": "stop_requested",
        "message": "node-1 took it",
        "actor": "ada",
        "job_id": job_id,
        "attempt": 3,
        "node": "node-1",
        "data": {"reason": "enough", "goes_on": False},
    }


def test_a_job_is_locked_by_the_id_of_its_attempt(
    context: Context, placed: tuple[str, str]
) -> None:
    job_id, attempt_id = placed
    with context.database.write() as connection:
        assert lock_job_of(connection, attempt_id) == job_id
        with pytest.raises(NotFoundError, match="no attempt has the id 'nothing'"):
            lock_job_of(connection, "nothing")


def test_what_is_not_there_cannot_move(context: Context, placed: tuple[str, str]) -> None:
    job_id, attempt_id = placed
    for missing, what in (
        (job_to("nothing", JobState.RUNNING), "job nothing"),
        (attempt_to("nothing", AttemptState.ENDED), "attempt nothing"),
        (
            node_to(attempt_id, "nowhere", AttemptNodeState.ENDED),
            f"node nowhere of attempt {attempt_id}",
        ),
        (node_to("nothing", "node-1", AttemptNodeState.ENDED), "node node-1 of attempt nothing"),
        (operation_to("nothing", OperationState.FAILED), "operation nothing"),
    ):
        with pytest.raises(NotFoundError, match=f"there is no {what}$"):
            try_move(context, job_id, missing)
    with (
        pytest.raises(NotFoundError, match="no job has the id 'nothing'"),
        context.database.write() as connection,
    ):
        lock_job(connection, "nothing")


def try_move(context: Context, job_id: str, *moves: Move) -> None:
    with context.database.write() as connection:
        event = NewEvent(Claimed(), TESTER, Subject(job_id), "moved")
        move(context, connection, event, *moves)


def put(context: Context, table: Table, state: StrEnum) -> None:
    with context.database.write() as connection:
        connection.execute(update(table).values({"state": state.value}))


def state_of(context: Context, table: Table) -> str:
    with context.database.read() as connection:
        return str(connection.execute(select(table.c.state)).scalar_one())


def events_stored(context: Context) -> int:
    with context.database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(events)).scalar_one())
