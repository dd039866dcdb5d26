"""A hang names the missing rank, from the positions of all nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import pytest
from sqlalchemy import Connection, event

from server.core.context import Context
from server.jobs.ranks.hangs import with_late_rank
from tests.server.harness import Harness
from trainer.metrics.flight_record import rank_ranges
from trainyard.run.directory import Phase
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.record_base import to_json
from trainyard.run.records import ExitRecord, PendingCollective, RankPosition

SILENCE = Failure(
    reason=FailureReason.HANG, message="no heartbeat for 600 s in phase training", step=39
)
WORLD = (0, 1, 2, 3)


def collective(
    number: int, *, ranks: tuple[int, ...] = WORLD, group: str = "default_pg/0"
) -> PendingCollective:
    return PendingCollective(
        group=group, ranks=rank_ranges(ranks), number=number, op="all_reduce", sizes="[[8]]"
    )


def at(
    rank: int, place: str | None = "loop/step.py:50 in __call__", *, waits: PendingCollective | None
) -> RankPosition:
    """Return the position of a rank."""
    return RankPosition(rank=rank, time=1.0, step=40, place=place, collective=waits)


def ended(
    outcome: Literal["failed", "cancelled"], positions: tuple[RankPosition, ...] = ()
) -> ExitRecord:
    failure = SILENCE if outcome == "failed" else None
    return ExitRecord(outcome=outcome, failure=failure, ranks=(), time=1.0, positions=positions)


def failure_of(harness: Harness, positions: Mapping[str, tuple[RankPosition, ...]]) -> Failure:
    """Run a job on nodes of two slots, end it by a hang, and return the attempt's failure."""
    for node in positions:
        harness.add_node(node, slots=2)
    job_id, supervisors = harness.running(step=40, resources={"world_size": 2 * len(positions)})
    for supervisor in supervisors:
        first = supervisor is supervisors[0]
        record = ended("failed" if first else "cancelled", positions[supervisor.node])
        supervisor.report(phase=Phase.TRAINING, step=40, exit_record=record)
    failure = harness.attempt(job_id).failure
    assert isinstance(failure, Failure)
    return failure


def test_the_rank_that_is_elsewhere(harness: Harness) -> None:
    waits = collective(120)
    failure = failure_of(
        harness,
        {
            "a": (at(0, waits=waits), at(1, waits=waits)),
            "b": (at(2, waits=waits), at(3, "data/loader.py:88 in read", waits=None)),
        },
    )
    assert failure.message == (
        "rank 3 on b did not arrive at all_reduce 120 of group default_pg/0 after step 40, in "
        "which ranks 0, 1, 2 wait: it is in data/loader.py:88 in read; " + SILENCE.message
    )
    assert (failure.rank, failure.node, failure.step) == (3, "b", 40)
    assert failure.reason == FailureReason.HANG


def test_a_rank_that_is_stopped(harness: Harness) -> None:
    waits = collective(7, ranks=(0, 1))
    stopped = RankPosition(rank=1, time=1.0, process="stopped")
    failure = failure_of(harness, {"a": (at(0, waits=waits), stopped)})
    assert (failure.rank, failure.step) == (1, 39)
    assert "in which rank 0 waits: it did not answer, and its process is stopped" in failure.message


def test_a_node_that_reports_no_positions(harness: Harness) -> None:
    waits = collective(7)
    failure = failure_of(harness, {"a": (at(0, waits=waits), at(1, waits=waits)), "b": ()})
    assert (failure.rank, failure.step) == (2, 39)
    assert "did not arrive (nor did rank 3)" in failure.message
    assert "no position of it is known" in failure.message


def test_a_chain_of_waits_ends_at_its_cause(harness: Harness) -> None:
    """Ranks 0 and 1 wait for 2, which itself waits in another group for 3."""
    waits = collective(5, ranks=(0, 1, 2), group="mesh_dp/1")
    failure = failure_of(
        harness,
        {
            "a": (at(0, waits=waits), at(1, waits=waits)),
            "b": (
                at(2, waits=collective(9, ranks=(2, 3), group="mesh_tp/4")),
                at(3, "models/own.py:7 in forward", waits=None),
            ),
        },
    )
    assert failure.rank == 3
    assert "all_reduce 9 of group mesh_tp/4" in failure.message


def test_a_chain_of_receives_ends_at_its_cause(harness: Harness) -> None:
    """In the gather of four ranks' metrics, 0 waits for 2, which waits for 3; 1 has sent."""

    def receive(*ranks: int) -> PendingCollective:
        return replace(collective(12, ranks=ranks), op="recv")

    failure = failure_of(
        harness,
        {
            "a": (at(0, waits=receive(0, 2)), at(1, waits=collective(40))),
            "b": (at(2, waits=receive(2, 3)), at(3, "data/loader.py:88 in read", waits=None)),
        },
    )
    assert failure.rank == 3
    assert failure.message.startswith("rank 3 on b did not arrive")


def test_a_rank_that_is_behind_in_the_same_group(harness: Harness) -> None:
    """It has not left an earlier collective: the late rank is unknown, and is not guessed."""
    failure = failure_of(
        harness,
        {"a": (at(0, waits=collective(9, ranks=(0, 1))), at(1, waits=collective(8, ranks=(0, 1))))},
    )
    assert failure.message == SILENCE.message


def test_all_ranks_in_one_collective(harness: Harness) -> None:
    waits = collective(9, ranks=(0, 1))
    failure = failure_of(harness, {"a": (at(0, waits=waits), at(1, waits=waits))})
    assert failure.message == SILENCE.message


def test_a_hang_without_positions(harness: Harness) -> None:
    assert failure_of(harness, {"a": ()}).message == SILENCE.message


# ---- many ranks ----------------------------------------------------------------------------------

RANKS = 4096
BY_NODE = 8
LATE = 1234


@pytest.mark.parametrize("stripped", [False, True], ids=["all with members", "some without"])
def test_one_of_4096_ranks_is_late(stripped: bool) -> None:
    """Nodes with many bytes of positions omit the members of groups."""
    world = rank_ranges(range(RANKS))
    waits = replace(collective(120), ranks=world)
    located = []
    for rank in range(RANKS):
        known = waits if rank < BY_NODE or not stripped else replace(waits, ranks=())
        position = at(rank, waits=None if rank == LATE else known)
        located.append((f"node-{rank // BY_NODE}", position))
    failure = with_late_rank(SILENCE, located, world_size=RANKS)
    assert failure.message.startswith(
        "rank 1234 on node-154 did not arrive at all_reduce 120 of group default_pg/0 after step "
        "40, in which ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4087 more wait: "
    )
    shares = [
        ended("failed", tuple(position for _, position in located[first : first + BY_NODE]))
        for first in range(0, RANKS, BY_NODE)
    ]
    assert max(len(to_json(share)) for share in shares) < 4_000


def test_a_rank_without_members_belongs_to_the_group_of_its_name_that_has_it() -> None:
    """Two groups of one name: rank 3 is late in the group of 2; ranks 0 and 1 have arrived."""
    first, second = (collective(7, ranks=ranks, group="mesh_tp/1") for ranks in ((0, 1), (2, 3)))
    positions = [
        at(0, waits=first),
        at(1, waits=replace(first, ranks=())),
        at(2, waits=second),
        at(3, waits=None),
    ]
    failure = with_late_rank(SILENCE, [("a", one) for one in positions], world_size=4)
    assert failure.rank == 3
    assert "in which rank 2 waits" in failure.message


def test_exit_records_are_read_once_an_attempt(harness: Harness, context: Context) -> None:
    nodes = [f"n{number}" for number in range(4)]
    for node in nodes:
        harness.add_node(node, slots=1)
    job_id, supervisors = harness.running(step=40, resources={"world_size": 4})
    read: list[str] = []

    def note(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if re.search(r"attempt_nodes\.exit\s*(,|FROM)", statement):
            read.append(statement)

    event.listen(context.database.engine, "before_cursor_execute", note)
    for rank, supervisor in enumerate(supervisors):
        waits = None if rank == 3 else collective(120)
        record = ended("cancelled" if rank else "failed", (at(rank, waits=waits),))
        supervisor.report(phase=Phase.TRAINING, step=40, exit_record=record)
    event.remove(context.database.engine, "before_cursor_execute", note)
    failure = harness.attempt(job_id).failure
    assert failure is not None
    assert failure.rank == 3
    assert len(read) == 2, "that of all shares for the hang, that of the first for its last commit"
