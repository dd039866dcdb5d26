"""Logs of several processes of a program, reduced to minimum, mean and maximum per step."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sqlalchemy import func, select, update

from server.core.database.metric_and_log_tables import rank_progress, rank_steps, step_digests
from server.core.database.tables import attempts
from server.core.errors import InvalidRequestError
from server.core.visibility.scope import SYSTEM_SCOPE
from server.telemetry.metrics import rank_steps as staging
from server.telemetry.metrics.charts import chart
from tests.server.clock import FakeClock
from tests.server.harness import BRINGS_CODE, Harness, Supervisor
from tests.server.reports import chunk, json_lines, kept_events, send
from trainyard.data import merge_digests
from trainyard.run.directory import Phase
from trainyard.run.records import ExitRecord, Heartbeat

pytestmark = BRINGS_CODE
RANKS = 4


@pytest.fixture
def job(harness: Harness) -> tuple[str, list[Supervisor]]:
    """A program on two nodes with two ranks each."""
    for name in ("node-1", "node-2"):
        harness.add_node(name, slots=2)
    return harness.launched(program={"command": ["train.py"]}, resources={"world_size": RANKS})


class Files:
    """The files of the processes, each reported by the node of its rank."""

    def __init__(self, harness: Harness, supervisors: list[Supervisor]) -> None:
        self._harness = harness
        self._supervisors = supervisors
        self._sizes: dict[str, int] = {}

    def log(self, rank: int, step: int, *, digest: str | None = None, **values: float) -> None:
        """Log one step of a rank, and report it from its node."""
        self.send(rank, [line(step, digest, **values)])

    def send(self, rank: int, lines: list[dict[str, Any]]) -> None:
        file = f"metrics:{rank}" if rank else "metrics"
        content, start = json_lines(lines), self._sizes.get(file, 0)
        supervisor = self._supervisors[rank // 2]
        # Twice: the reply to the first one may be lost.
        for _ in range(2):
            reply = send(self._harness.context, supervisor, chunk(file, content, start=start))
            assert reply.acknowledged == {file: start + len(content)}
        self._sizes[file] = start + len(content)

    def send_as(self, supervisor: Supervisor, file: str, content: bytes) -> dict[str, int]:
        return dict(send(self._harness.context, supervisor, chunk(file, content)).acknowledged)

    def end(self, node_rank: int) -> None:
        record = ExitRecord(outcome="succeeded", failure=None, ranks=(), time=1.0)
        send(self._harness.context, self._supervisors[node_rank], exit=record)


def line(step: int, digest: str | None = None, /, **values: float) -> dict[str, Any]:
    return {
        "step": step,
        "time": 1000.0 + step,
        "values": values,
        "data_digest": digest,
        "ranks": RANKS,
    }


@pytest.fixture
def files(harness: Harness, job: tuple[str, list[Supervisor]]) -> Files:
    return Files(harness, job[1])


def curve(harness: Harness, job_id: str, name: str) -> dict[int, float | None]:
    """The points of a series; empty without one."""
    if name not in chart(harness.context, job_id, [], scope=SYSTEM_SCOPE).names:
        return {}
    (found,) = chart(harness.context, job_id, [name], scope=SYSTEM_SCOPE).curves
    return dict(zip(found.steps, found.last, strict=True))


def staged(harness: Harness) -> int:
    with harness.context.database.read() as connection:
        return connection.scalar(select(func.count()).select_from(rank_steps)) or 0


def test_a_step_is_folded_once_all_ranks_are_beyond_it(
    harness: Harness, job: tuple[str, list[Supervisor]], files: Files
) -> None:
    for step in (1, 2):
        for rank in range(RANKS):
            files.log(rank, step, loss=float(10 * step + rank))
    assert curve(harness, job[0], "loss") == {1: 10.0, 2: 20.0}  # of rank 0
    assert curve(harness, job[0], "loss/min") == {1: 10.0}
    assert curve(harness, job[0], "loss/mean") == {1: 11.5}
    assert curve(harness, job[0], "loss/max") == {1: 13.0}
    assert staged(harness) == 1


def test_the_end_of_the_attempt_folds_the_rest(
    harness: Harness, job: tuple[str, list[Supervisor]], files: Files
) -> None:
    for rank in range(RANKS):
        files.log(rank, 1, loss=float(rank))
    files.end(1)
    assert curve(harness, job[0], "loss/mean") == {}
    files.end(0)
    assert curve(harness, job[0], "loss/mean") == {1: 1.5}
    assert staged(harness) == 0


def test_an_attempt_without_a_last_report_is_folded_later(
    harness: Harness, job: tuple[str, list[Supervisor]], files: Files
) -> None:
    for rank in range(RANKS):
        files.log(rank, 1, loss=float(rank))
    staging.fold_ended(harness.context)
    assert staged(harness) == 1
    with harness.context.database.write() as connection:
        connection.execute(update(attempts).values(state="ended"))
    staging.fold_ended(harness.context)
    assert curve(harness, job[0], "loss/mean") == {1: 1.5}
    assert staged(harness) == 0


def test_a_rank_that_falls_behind_is_left_out_after_a_time(
    harness: Harness, clock: FakeClock, job: tuple[str, list[Supervisor]], files: Files
) -> None:
    for rank in (0, 1):
        files.log(rank, 1, loss=float(rank))
    clock.advance(staging.WAITS.total_seconds() + 1)
    files.log(0, 2, loss=0.0)
    assert curve(harness, job[0], "loss/max") == {1: 1.0}
    files.log(2, 1, loss=99.0)
    clock.advance(staging.WAITS.total_seconds() + 1)
    files.log(0, 3, loss=0.0)
    assert curve(harness, job[0], "loss/max") == {1: 1.0}


def test_what_only_rank_0_logs_is_not_folded(
    harness: Harness, clock: FakeClock, job: tuple[str, list[Supervisor]], files: Files
) -> None:
    for step in range(1, 5):
        files.log(0, step, loss=1.0)
        clock.advance(staging.WAITS.total_seconds())
    assert list(chart(harness.context, job[0], [], scope=SYSTEM_SCOPE).names) == ["loss"]
    assert staged(harness) <= 2


def test_values_of_a_rank_of_its_own_are_stored_at_once(
    harness: Harness, job: tuple[str, list[Supervisor]], files: Files
) -> None:
    files.send(3, [line(1, **{"gpu/rank-3": 7.0, "gpu/rank-2": 1.0})])
    assert curve(harness, job[0], "gpu/rank-3") == {1: 7.0}
    assert curve(harness, job[0], "gpu/rank-2") == {}


def test_nan_and_infinity_are_kept(
    harness: Harness, job: tuple[str, list[Supervisor]], files: Files
) -> None:
    for step in (1, 2):
        for rank, value in enumerate((1.0, math.nan, 3.0, math.inf)):
            files.log(rank, step, loss=value)
    (mean,) = chart(harness.context, job[0], ["loss/mean"], scope=SYSTEM_SCOPE).curves
    assert mean.non_finite == [1]
    assert curve(harness, job[0], "loss/min") == {1: 1.0}
    (most,) = chart(harness.context, job[0], ["loss/max"], scope=SYSTEM_SCOPE).curves
    assert most.non_finite == [1]


def test_the_digest_of_a_step_is_the_sum_of_those_of_all_ranks(
    harness: Harness, files: Files
) -> None:
    digests = [f"{rank + 1:032x}" for rank in range(RANKS)]
    for step in (1, 2, 3):
        for rank in range(RANKS):
            if (step, rank) != (2, 3):  # a part of that step is missing
                files.log(rank, step, digest=digests[rank])
    files.end(0)
    files.end(1)
    with harness.context.database.read() as connection:
        rows = connection.execute(select(step_digests.c.step, step_digests.c.digest)).all()
    assert dict(map(tuple, rows)) == dict.fromkeys((1, 3), merge_digests(digests))


def test_many_steps_of_one_report_are_folded_in_their_order(
    harness: Harness, job: tuple[str, list[Supervisor]], files: Files
) -> None:
    """After an outage each node reports the contents of its spool."""
    for rank in range(RANKS):
        files.send(rank, [line(step, loss=float(step + rank)) for step in range(1, 1502)])
    with harness.context.database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(rank_progress)) == RANKS
    means = chart(
        harness.context, job[0], ["loss/mean"], max_points=2000, scope=SYSTEM_SCOPE
    ).curves[0]
    assert sum(means.count) == 1500
    assert staged(harness) == 1


def test_too_many_steps_are_folded_early(
    monkeypatch: pytest.MonkeyPatch,
    harness: Harness,
    job: tuple[str, list[Supervisor]],
    files: Files,
) -> None:
    monkeypatch.setattr(staging, "MAX_STAGED", 10)
    for rank in (0, 1):
        files.send(rank, [line(step, loss=1.0) for step in range(1, 21)])
    assert staged(harness) == 10


def test_a_node_reports_its_own_ranks_alone(
    job: tuple[str, list[Supervisor]], files: Files
) -> None:
    content = json_lines([line(1, loss=1.0)])
    _, (first, second) = job
    with pytest.raises(InvalidRequestError, match="metrics:3 is of no rank on node-1: 0 to 1"):
        files.send_as(first, "metrics:3", content)
    # The one process of a node has the number of the node.
    assert files.send_as(second, "metrics:1", content) == {"metrics:1": len(content)}


def test_a_heartbeat_gives_steps_and_answers(
    harness: Harness, job: tuple[str, list[Supervisor]], files: Files
) -> None:
    beat = Heartbeat(phase=Phase.TRAINING, step=3, time=1.0, steps=10, answers=("stop", "save"))
    send(harness.context, job[1][0], heartbeat=beat)
    progress = harness.job(job[0]).progress
    assert (progress.step, progress.steps, progress.answers) == (3, 10, ("stop", "save"))
    files.log(0, 11, loss=1.0)  # the steps of a program are an estimate
    assert curve(harness, job[0], "loss") == {11: 1.0}
    assert kept_events(harness.context, "metrics_dropped") == []


def test_a_report_rewrites_a_bounded_part_of_what_is_staged(
    harness: Harness,
    job: tuple[str, list[Supervisor]],
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "MAX_REWRITTEN", 100)
    wide = {f"name-{number}": 1.0 for number in range(10)}
    files.send(1, [line(step, **wide) for step in range(1, 201)])
    before = staged(harness)
    files.send(2, [line(step, **{"name-1": 5.0}) for step in range(1, 201)])
    assert staged(harness) == before == 200
    for node in (0, 1):
        files.end(node)
    folded = curve(harness, job[0], "name-1/max")
    assert list(folded) == list(range(1, staging.STEPS_A_QUERY + 1)), "the first steps alone"


def test_what_is_staged_in_excess_is_folded_over_several_turns(
    harness: Harness,
    job: tuple[str, list[Supervisor]],
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "VALUES_AT_ONCE", 100)
    for rank in (1, 2):
        files.send(rank, [line(step, a=1.0, b=2.0) for step in range(1, 201)])
    for node in (0, 1):
        files.end(node)
    assert staged(harness) == 150
    for left in (100, 50, 0):
        staging.fold_ended(harness.context)
        assert staged(harness) == left
    assert list(curve(harness, job[0], "a/mean")) == list(range(1, 201))


def test_lines_without_number_that_are_no_records_hold_up_neither_others_nor_the_events(
    harness: Harness, job: tuple[str, list[Supervisor]], files: Files
) -> None:
    good = [json_lines([line(step, loss=1.0)]) for step in (1, 2)]
    content = good[0] + b"garbage\n" * 1000 + good[1]
    taken = files.send_as(job[1][0], "metrics:1", content)
    assert taken == {"metrics:1": len(content)}
    assert staged(harness) == 2
    assert len(kept_events(harness.context, "line_skipped")) == 100
