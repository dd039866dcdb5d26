"""A hang names the rank that did not arrive, from the positions of all nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tests.server.harness import Harness
from trainyard.run.directory import Phase
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.records import ExitRecord, PendingCollective, RankPosition

SILENCE = Failure(
    reason=FailureReason.HANG, message="no heartbeat for 600 s in phase training", step=39
)
WORLD = (0, 1, 2, 3)


def collective(
    number: int, *, ranks: tuple[int, ...] = WORLD, group: str = "default_pg/0"
) -> PendingCollective:
    return PendingCollective(
        group=group, ranks=ranks, number=number, op="all_reduce", sizes="[[8]]"
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
    """Run a job on nodes of two slots, end it by a hang, and return what the attempt failed of."""
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


def test_a_rank_that_is_behind_in_the_same_group(harness: Harness) -> None:
    """It has not left an earlier collective: which is late cannot be seen, and is not guessed."""
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
