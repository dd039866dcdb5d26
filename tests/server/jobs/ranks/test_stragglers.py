"""Stragglers: stored with their place, shown while they last, counted for their slots."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Connection, event

from server.app.monitoring import Monitoring
from server.cluster.nodes.changes import set_drain
from server.cluster.nodes.queries import REMEMBERED, list_nodes
from server.core.context import Context
from server.core.errors import NotFoundError
from server.core.events.tail import Tail
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.queries import attempt_views
from server.jobs.ranks import store
from server.jobs.ranks.store import read_ranks
from server.telemetry.goodput.cluster import ClusterLedger
from tests.actors import ADA
from tests.server.harness import Harness, Supervisor
from tests.server.reports import chunk, kept_events, send
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.run.directory import Phase
from trainyard.run.records import ExitRecord

SPAN = {
    "first_rank": 0,
    "last_rank": 0,
    "rank": 0,
    "compute_seconds": 0.5,
    "data_seconds": 0.0,
    "wait_seconds": 0.25,
}


class Trainer:
    """Writes lines of `events.jsonl` and reports them."""

    def __init__(self, context: Context, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor
        self._written = b""

    def write(self, kind: str, *, step: int = 20, **data: Any) -> None:
        self._report([{"time": 1000.0, "kind": kind, "step": step, "data": data}])

    def _report(self, events: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(one) + "\n" for one in events).encode()
        start = len(self._written)
        self._written += lines
        send(self._context, self._supervisor, chunk("events", lines, start=start))

    def finds(self, rank: int, *, step: int = 20, share: float = 0.2) -> None:
        self.finds_all({rank: share}, step=step)

    def finds_all(self, shares: Mapping[int, float], *, step: int = 20) -> None:
        """Report stragglers in one report, each with its cost."""
        same = {"kind": "compute", "factor": 1.4}
        found = [{"rank": rank, "share": share, **same} for rank, share in shares.items()]
        kind = "straggler_found"
        self._report([{"time": 1000.0, "kind": kind, "step": step, "data": one} for one in found])


def running(
    harness: Harness, context: Context, *, world_size: int = 4
) -> tuple[str, Trainer, list[Supervisor]]:
    job_id, supervisors = harness.running(step=20, resources={"world_size": world_size})
    return job_id, Trainer(context, supervisors[0]), supervisors


def view_of(harness: Harness, context: Context, job_id: str) -> AttemptView:
    with context.database.read() as connection:
        spec = harness.job(job_id).spec
        (view,) = attempt_views(connection, job_id, spec=spec, rows=[harness.attempt(job_id)])
    return view


def test_a_straggler_has_node_and_slot(harness: Harness, context: Context) -> None:
    for node in ("a", "b"):
        harness.add_node(node, slots=2)
    job_id, trainer, _ = running(harness, context)
    trainer.finds(1, share=0.1)
    trainer.finds(3)
    view = view_of(harness, context, job_id)
    assert [(one.rank, one.node, one.slot) for one in view.stragglers] == [(3, "b", 1), (1, "a", 1)]
    assert view.stragglers[0].words == (
        "rank 3 on b (slot 1) computes 1.4x as long as the others: costs 20 % of each step"
    )
    (first, second) = kept_events(context, "straggler_found")
    assert (first["node"], first["slot"]) == ("a", 1)
    assert (second["rank"], second["factor"], second["share"]) == (3, 1.4, 0.2)
    trainer.write("straggler_gone", step=60, rank=3)
    view = view_of(harness, context, job_id)
    assert [one.rank for one in view.stragglers] == [1]
    assert [
        one.rank
        for one in read_ranks(context, job_id, scope=SYSTEM_SCOPE).stragglers
        if one.gone_at
    ] == [3]
    # It may come again, as another row.
    trainer.finds(3, step=100)
    assert len(read_ranks(context, job_id, scope=SYSTEM_SCOPE).stragglers) == 3


def test_views_and_the_gauge_have_the_costliest(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_SHOWN", 2)
    harness.add_node("a")
    job_id, trainer, _ = running(harness, context)
    placed: list[str] = []

    def note(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if re.match(r"SELECT attempt_nodes.node, attempt_nodes.slots\s", statement):
            placed.append(statement)

    event.listen(context.database.engine, "before_cursor_execute", note)
    trainer.finds_all({0: 0.1, 1: 0.3, 2: 0.2, 3: 0.4})
    event.remove(context.database.engine, "before_cursor_execute", note)
    assert len(placed) == 1, "the places of all ranks are read once a report"
    assert [one.rank for one in view_of(harness, context, job_id).stragglers] == [3, 1]
    gauge = re.findall(r'straggler_cost_ratio\{.*slot="(\d+)"', scraped(context))
    assert sorted(gauge) == ["1", "3"]


def test_present_stragglers_come_before_any_number_of_former_ones(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_SHOWN", 2)
    harness.add_node()
    job_id, trainer, _ = running(harness, context)
    trainer.finds(2)
    for step in (30, 40, 50):
        harness.clock.advance(1)
        trainer.finds(1, step=step)
    trainer.write("straggler_gone", rank=1, step=60)
    shown = read_ranks(context, job_id, scope=SYSTEM_SCOPE).stragglers
    assert [(one.rank, one.step, one.gone_at is None) for one in shown] == [
        (2, 20, True),
        (1, 50, False),
    ]


def test_a_report_that_comes_twice_adds_no_row(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, trainer, _ = running(harness, context)
    trainer.finds(1)
    trainer.finds(1)
    assert len(read_ranks(context, job_id, scope=SYSTEM_SCOPE).stragglers) == 1


def test_a_rank_that_the_attempt_does_not_have_is_dropped(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, trainer, _ = running(harness, context)
    trainer.finds(4)
    trainer.write("straggler_gone", rank=9)
    assert read_ranks(context, job_id, scope=SYSTEM_SCOPE).stragglers == ()
    assert kept_events(context, "straggler_found") == []


def test_an_attempt_that_has_ended_has_no_present_straggler(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, trainer, (supervisor,) = running(harness, context)
    trainer.finds(1)
    assert "trainyard_straggler_cost_ratio{" in scraped(context)
    record = ExitRecord(outcome="succeeded", failure=None, ranks=(), time=1.0)
    supervisor.report(phase=Phase.ENDING, step=60, exit_record=record)
    assert view_of(harness, context, job_id).stragglers == ()
    (kept,) = read_ranks(context, job_id, scope=SYSTEM_SCOPE).stragglers
    assert kept.gone_at == harness.attempt(job_id).ended_at is not None
    assert "trainyard_straggler_cost_ratio{" not in scraped(context)


def scraped(context: Context) -> str:
    from prometheus_client import generate_latest

    with closing(ClusterLedger(context)) as ledger:
        return generate_latest(Monitoring(context, Tail(context), ledger).registry).decode()


def test_the_gauge_names_the_slot_and_no_job(harness: Harness, context: Context) -> None:
    harness.add_node("a")
    job_id, trainer, _ = running(harness, context)
    trainer.finds(2)
    (line,) = [
        line
        for line in scraped(context).splitlines()
        if line.startswith("trainyard_straggler_cost_ratio{")
    ]
    for label in ('node="a"', 'slot="2"'):
        assert label in line
    assert "tiny" not in line, "whoever reads metrics may not see the job"
    assert job_id not in line
    assert line.endswith(" 0.2")


def test_the_times_of_the_ranks_are_those_of_the_newest_window(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, trainer, _ = running(harness, context)
    assert read_ranks(context, job_id, scope=SYSTEM_SCOPE).times is None
    for step in (20, 40):
        trainer.write("rank_times", step=step, ranks=[SPAN])
    times = read_ranks(context, job_id, scope=SYSTEM_SCOPE).times
    assert times is not None
    assert times.step == 40
    assert times.ranks[0].wait_seconds == 0.25
    (notice,) = kept_events(context, "rank_times")
    assert notice == {"step": 40}


def test_a_job_that_is_not_there(context: Context) -> None:
    with pytest.raises(NotFoundError, match="no job has the id 'x'"):
        read_ranks(context, "x", scope=SYSTEM_SCOPE)


def slow_slots(context: Context) -> list[tuple[int, int]]:
    """Return the slow slots of the only node, each with its number of jobs."""
    return [(one.slot, one.jobs) for one in list_nodes(context, scope=SYSTEM_SCOPE)[0].slow_slots]


def run_with_stragglers(harness: Harness, context: Context, *ranks: int) -> None:
    """Run a job to its end; each of the ranks is found twice."""
    _, trainer, (supervisor,) = running(harness, context, world_size=4)
    for step in (20, 50):
        trainer.finds_all(dict.fromkeys(ranks, 0.2), step=step)
    record = ExitRecord(outcome="succeeded", failure=None, ranks=(), time=1.0)
    supervisor.report(phase=Phase.ENDING, step=60, exit_record=record)


def test_a_slot_that_slows_several_jobs_is_named_by_its_node(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a")
    run_with_stragglers(harness, context, 1, 3)
    assert slow_slots(context) == []
    run_with_stragglers(harness, context, 3)
    assert slow_slots(context) == [(3, 2)]
    harness.clock.advance(REMEMBERED.total_seconds() + 1)
    assert slow_slots(context) == []


def test_a_person_who_ends_a_drain_trusts_the_slots_again(
    harness: Harness, context: Context
) -> None:
    harness.add_node("a")
    run_with_stragglers(harness, context, 3)
    run_with_stragglers(harness, context, 3)
    harness.clock.advance(1)
    set_drain(context, "a", "finish", actor=ADA)
    assert slow_slots(context) == [(3, 2)]
    set_drain(context, "a", None, actor=ADA)
    assert slow_slots(context) == []
    harness.clock.advance(1)
    run_with_stragglers(harness, context, 3)
    assert slow_slots(context) == [], "the former jobs do not count"
