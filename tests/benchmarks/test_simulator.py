"""The simulator: the real scheduler keeps its rules, and each check finds one that is broken."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from itertools import count, pairwise
from typing import Any

import pytest

from benchmarks.control_plane.servers import store
from benchmarks.simulator.checks import (
    MAX_STARTED,
    NEVER,
    Line,
    Running,
    Waiting,
    earliest_start,
)
from benchmarks.simulator.simulation import Record, Simulation
from benchmarks.simulator.trace import (
    KNOWN,
    LARGEST_FACTOR,
    SATURATING_RATE,
    SLOTS_PER_NODE,
    Known,
    Trace,
    TracedJob,
    heavy_tail,
    kueue,
    saturated_heavy_tail,
    shortest_makespan,
    wide_heavy_tail,
)
from server.cluster.placement import backfill, decide
from server.cluster.placement.decide import Turns
from server.cluster.placement.demand import LEAVES_WITHIN
from server.jobs.queue import heads
from server.scheduler.rounds.loop import TICK_SECONDS
from server.scheduler.rounds.round import Placer


def run(trace: Trace, known: Known = "bounds") -> Record:
    with store("sqlite") as opened:
        return Simulation(opened, trace, known=known).run()


@pytest.mark.parametrize("known", KNOWN)
def test_a_heavy_tailed_trace_runs_to_its_end_without_a_broken_rule(known: Known) -> None:
    trace = wide_heavy_tail(60, 4, seed=7)

    record = run(trace, known)

    assert record.violations == []
    assert record.placements == len(trace.jobs) + record.left
    assert (record.backfills > 0) == (known != "nothing")
    assert (record.left > 0, len(record.expected) > 0) == (known == "history",) * 2
    assert max(record.kept_seconds, default=0) <= LEAVES_WITHIN.total_seconds()
    assert all(waited <= bound + TICK_SECONDS for waited, bound in record.head_waits)
    assert shortest_makespan(trace) <= record.makespan < 2 * shortest_makespan(trace)


def test_the_queues_of_kueue_share_a_cluster_evenly() -> None:
    trace = kueue(300, 5, seed=1)

    record = run(trace)

    assert record.violations == []
    assert (record.placements, record.backfills) == (300, 0)
    held = record.contended_slot_seconds
    assert max(held.values()) / min(held.values()) < 1.05


def test_a_backfill_that_needs_a_kept_node_for_too_long_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decide, "needed_before", lambda _end, _keepers: set())

    record = run(wide_heavy_tail(100, 4, seed=1))

    assert any("is put off" in violation for violation in record.violations)


def test_a_head_that_those_which_overtook_it_keep_waiting_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Placer, "preempt", lambda _: 0)

    record = run(wide_heavy_tail(60, 4, seed=7), "history")

    assert max(record.kept_seconds) > LEAVES_WITHIN.total_seconds()


def test_a_start_behind_the_head_that_is_no_backfill_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Turns, "_keep", lambda *_: None)

    record = run(heavy_tail(60, 4, seed=1))

    assert any("is behind the head of the queue" in violation for violation in record.violations)


def test_a_job_that_fits_and_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill.Keeper, "earliest_start", None)
    place = Turns._place
    monkeypatch.setattr(
        Turns, "_place", lambda self, job: job.demand.world_size < 8 and place(self, job)
    )

    record = run(heavy_tail(30, 8, seed=1))

    assert any("fits and waits" in violation for violation in record.violations)


def wave(count: int) -> Trace:
    """Return a trace in which so many jobs of one slot wait for an empty cluster."""
    nodes = count // SLOTS_PER_NODE
    large = TracedJob("large", "vision", 0, nodes * SLOTS_PER_NODE, 0.0, 10.0, None)
    small = [TracedJob(f"small-{n}", "vision", 0, 1, 1.0, 10.0, None) for n in range(count)]
    return Trace([large, *small], {"vision": 1.0}, nodes)


def test_more_jobs_than_a_round_starts_follow_in_the_next_one() -> None:
    record = run(wave(MAX_STARTED + 4))

    assert record.violations == []
    assert record.makespan < 20 + 8 * TICK_SECONDS


def test_a_round_that_starts_fewer_jobs_than_it_may_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heads, "FIRST_AT_ONCE", 20)
    monkeypatch.setattr(heads, "GROUP_AT_ONCE", 20)

    record = run(wave(48))

    assert any("fits and waits" in violation for violation in record.violations)


def test_kueues_classes_become_priorities_and_world_sizes() -> None:
    trace = kueue(60_000, 1_000, seed=1)

    assert (len(trace.jobs), len(trace.weights), trace.slots) == (60_000, 2_000, 8_000)
    found = {
        (job.priority, job.world_size, job.seconds): sum(
            (other.world_size, other.project) == (job.world_size, job.project)
            for other in trace.jobs
        )
        for job in {job.world_size: job for job in trace.jobs}.values()
    }
    assert found == {(-50, 1, 50.0): 20, (0, 5, 100.0): 7, (50, 20, 200.0): 3}


def test_the_tail_is_heavy_and_no_expected_duration_too_short() -> None:
    trace = heavy_tail(2_000, 1_000, seed=3)

    assert {job.world_size for job in trace.jobs} == {2**power for power in range(10)}
    seconds = sorted(job.seconds for job in trace.jobs)
    assert sum(seconds) / len(seconds) > 2 * seconds[len(seconds) // 2]
    factors = [(job.expected_seconds or 0.0) / job.seconds for job in trace.jobs]
    assert 1.0 <= min(factors) < max(factors) <= LARGEST_FACTOR
    assert heavy_tail(2_000, 1_000, seed=3) == trace


def test_the_saturating_trace_differs_by_one_factor_of_time() -> None:
    trace, fast = heavy_tail(200, 4, seed=1), saturated_heavy_tail(200, 4, seed=1)

    factor = 200 / SATURATING_RATE / trace.jobs[-1].arrives_at
    assert fast.jobs[-1].arrives_at == pytest.approx(200 / SATURATING_RATE)
    for job, shorter in zip(trace.jobs, fast.jobs, strict=True):
        times = (job.arrives_at, job.seconds, job.expected_seconds or 0.0)
        assert (shorter.arrives_at, shorter.seconds, shorter.expected_seconds) == pytest.approx(
            tuple(time * factor for time in times)
        )
        assert (shorter.name, shorter.world_size) == (job.name, job.world_size)


def test_more_arrives_while_a_round_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, began = count(step=0.6), list[datetime]()
    monkeypatch.setattr(time, "process_time", lambda: next(cpu))
    run_round = Placer.run

    def noted(placer: Placer) -> int:
        began.append(placer._context.now())
        return run_round(placer)

    monkeypatch.setattr(Placer, "run", noted)
    with store("sqlite") as opened:
        record = Simulation(opened, heavy_tail(20, 4, seed=1), rounds_take_time=True).run()

    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(began)]
    assert min(gaps) >= TICK_SECONDS + 0.6
    assert (record.placements, record.violations) == (20, [])


@pytest.mark.parametrize(("free", "expected"), [(8, 0.0), (7, 5.0), (5, 7.0), (3, NEVER)], ids=str)
def test_the_earliest_start_follows_from_the_expected_ends(free: int, expected: float) -> None:
    running = [Running(2, 7.0), Running(1, 5.0), Running(4, NEVER)]

    assert earliest_start(8, free, running) == expected


@pytest.mark.parametrize(
    ("changed", "held", "expected"),
    [
        ({}, {"vision": 3, "speech": 0}, True),  # 1 is counted for vision then
        ({}, {"vision": 3, "speech": 1}, False),
        ({"priority": 1}, {"vision": 3, "speech": 1}, True),
        ({"priority": -1}, {"vision": 3, "speech": 0}, False),
        ({"arrives_at": 4.0}, {"vision": 3, "speech": 1}, True),
        ({"arrives_at": 21.0}, {"vision": 3, "speech": 0}, False),
        ({"project": "vision"}, {"vision": 3}, False),
        ({"project": "vision", "arrives_at": 4.0}, {"vision": 3}, True),
    ],
    ids=str,
)
def test_what_overtook_lets_ahead_what_the_queue_has_ahead_of_it(
    changed: dict[str, Any], held: dict[str, int], expected: bool
) -> None:
    own = Waiting("own", TracedJob("own", "vision", 0, 2, 5.0, 10.0, None))
    head = Waiting("head", replace(TracedJob("head", "speech", 0, 4, 10.0, 10.0, None), **changed))
    line = Line()
    line.add(head)
    weights = {"vision": 1.0, "speech": 1.0}

    running = Running(2, NEVER, own, began_at=20.0)
    assert line.lets_ahead(running, head, held=held, weights=weights, without=()) is expected
    assert not line.lets_ahead(Running(2, NEVER), head, held=held, weights=weights, without=())


@pytest.mark.parametrize(
    ("arrival", "world_size", "expected"),
    [(100.0, 1, 110.0), (100.0, SLOTS_PER_NODE, 110.0), (0.0, SLOTS_PER_NODE, 20.0)],
    ids=str,
)
def test_no_schedule_ends_before_the_bound(
    arrival: float, world_size: int, expected: float
) -> None:
    def job(at: float, size: int) -> TracedJob:
        return TracedJob("job", "default", 0, size, at, 10.0, None)

    trace = Trace([job(0.0, SLOTS_PER_NODE), job(arrival, world_size)], {"default": 1.0}, 1)

    assert shortest_makespan(trace) == expected
