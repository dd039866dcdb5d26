"""The one door: every legal move happens with its event, every other one changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import pytest
from sqlalchemy import Table, func, select, update

from server.context import Context
from server.errors import NotFoundError
from server.lifecycle import IllegalMoveError, Move, attempt_to, job_to, lock_job, move, node_to
from server.tables import attempt_nodes, attempts, events, jobs
from specs.events import EventKind
from specs.states import (
    ATTEMPT_MOVES,
    ATTEMPT_NODE_MOVES,
    JOB_MOVES,
    TERMINAL_JOB_STATES,
    AttemptNodeState,
    AttemptState,
    JobState,
)
from tests.server.harness import Harness

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
]


@pytest.fixture
def placed(harness: Harness) -> tuple[str, str]:
    """Ids of a job and of its attempt."""
    harness.add_node()
    job_id = harness.submit()
    harness.place()
    return job_id, harness.attempt(job_id).id


@pytest.mark.parametrize(
    ("table", "states", "moves", "make"), RECORDS, ids=["job", "attempt", "attempt-node"]
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
            job_to(job_id, JobState.STARTING),  # it is that already
        )
    assert harness.dump() == before


def test_a_caller_may_narrow_a_move(context: Context, placed: tuple[str, str]) -> None:
    job_id, _ = placed
    with pytest.raises(IllegalMoveError):  # legal for a retry, not for a resume
        try_move(context, job_id, job_to(job_id, JobState.QUEUED, only_from=TERMINAL_JOB_STATES))


def test_what_is_not_there_cannot_move(context: Context, placed: tuple[str, str]) -> None:
    job_id, attempt_id = placed
    for missing in (
        job_to("nothing", JobState.RUNNING),
        attempt_to("nothing", AttemptState.ENDED),
        node_to(attempt_id, "nowhere", AttemptNodeState.ENDED),
    ):
        with pytest.raises(NotFoundError, match="there is no"):
            try_move(context, job_id, missing)
    with (
        pytest.raises(NotFoundError, match="no job has the id 'nothing'"),
        context.database.write() as connection,
    ):
        lock_job(connection, "nothing")


def try_move(context: Context, job_id: str, *moves: Move) -> None:
    with context.database.write() as connection:
        move(
            context,
            connection,
            *moves,
            kind=EventKind.PLACED,
            message="moved",
            actor="test",
            job_id=job_id,
        )


def put(context: Context, table: Table, state: StrEnum) -> None:
    with context.database.write() as connection:
        connection.execute(update(table).values({"state": state.value}))


def state_of(context: Context, table: Table) -> str:
    with context.database.read() as connection:
        return str(connection.execute(select(table.c.state)).scalar_one())


def events_stored(context: Context) -> int:
    with context.database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(events)).scalar_one())
