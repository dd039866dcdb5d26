"""Supply on virtual time: a small queue over three engines, and checks that find broken rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.control_plane.servers import store
from benchmarks.supply.__main__ import broken
from benchmarks.supply.engines import Life, SimulatedEngine
from benchmarks.supply.events import Timeline
from benchmarks.supply.mix import SOURCES, Habits, MixedJob, SimulatedSource, mix
from benchmarks.supply.simulation import Simulation, simulate
from server.scheduler.autoscaling import supply_plan
from server.scheduler.autoscaling.supply_plan import Supplier


def run(jobs: Sequence[MixedJob], sources: Sequence[SimulatedSource] = SOURCES) -> Simulation:
    with store("sqlite") as opened:
        return simulate(opened, jobs, sources, seed=1, idle_seconds=30.0)


def quick(source: SimulatedSource) -> SimulatedSource:
    """Return a source whose engine makes no mistakes and hardly anybody wait."""
    habits = Habits((2.0, 20.0), source.habits.boot, source.habits.machines, 0.0, 0.0, 0.0)
    return replace(source, habits=replace(habits, is_forgotten=0.0))


def job(number: int, size: int, seconds: float, **more: object) -> MixedJob:
    made = MixedJob(f"job-{number}", size, size * seconds, arrives_at=0.0)
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_queue_over_three_engines_ends_without_a_broken_rule() -> None:
    jobs = [
        job(1, 16, 120.0, is_elastic=True),
        job(2, 60, 60.0),
        job(3, 32, 40.0),
        job(4, 1, 90.0, arrives_at=60.0),
    ]

    found = run(jobs, [quick(each) for each in SOURCES])

    assert (found.record.violations, broken(found)) == ([], [])
    assert [work.succeeded for work in found.works.values()] == [1, 1, 1, 1]
    record = found.record
    assert 0.0 < sum(record.idle_seconds.values()) < sum(record.node_seconds.values())
    assert sum(record.idle_causes.values()) == pytest.approx(sum(record.idle_seconds.values()))
    assert record.longest_without_demand <= 60.0
    assert len({row.source for row in found.requests()}) > 1
    assert all(row.ended_at is not None for row in found.requests())


WAITS_LONG = replace(
    quick(SOURCES[0]), habits=replace(quick(SOURCES[0]).habits, wait=(200.0, 201.0))
)


@pytest.mark.parametrize(("after", "longest"), [(None, 60.0), (1e9, 200.0)], ids=["kept", "broken"])
def test_a_request_that_outlives_its_demand_is_found(
    monkeypatch: pytest.MonkeyPatch, after: float | None, longest: float
) -> None:
    if after is not None:
        monkeypatch.setattr(supply_plan, "WITHDRAW_AFTER_SECONDS", after)

    found = run([job(1, 4, 30.0, cancelled_at=20.0)], [WAITS_LONG])

    assert longest - 40.0 <= found.record.longest_without_demand <= longest
    assert found.record.violations == []


def test_a_limit_that_is_exceeded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supplier, "takes", lambda *_: True)

    found = run([job(1, 60, 30.0, cancelled_at=30.0)], [quick(SOURCES[2])])

    assert found.record.violations == ["ssh: 8 nodes are asked for or allocated, the limit is 6"]


def test_work_that_is_not_done_once_is_found() -> None:
    found = run([job(1, 1, 10.0)], [quick(SOURCES[2])])
    (work,) = found.works.values()

    work.succeeded = 2
    next(iter(found.engines.values())).cut_off = 1

    assert broken(found) == [
        "job-1 is succeeded after 2 complete trainings",
        "ssh: 1 nodes trained when their allocation ended",
    ]


class NoMachines:
    """Machines on which pilots do nothing."""

    def boot(self, source: str, request_id: str, life: Life) -> None:
        """Start no pilot."""

    def kill(self, life: Life) -> None:
        """End nothing."""

    def is_busy(self, life: Life) -> bool:
        """Return that nothing runs."""
        return False


def test_an_engine_that_knows_nothing_cancels_and_explains_nothing() -> None:
    engine = SimulatedEngine(quick(SOURCES[0]), Timeline(), machines=NoMachines(), seed=1)

    engine.cancel("none")

    found = engine.list().jobs, engine.status(["none"]), engine.explain("none")
    assert found == ([], [], "unknown")


def test_the_mix_has_small_and_large_short_and_long_and_elastic_jobs() -> None:
    jobs = mix(500, seed=3)

    assert {each.world_size for each in jobs} == {1, 2, 4, 8, 16, 32}
    seconds = sorted(each.slot_seconds / each.world_size for each in jobs)
    assert seconds[50] < 150 < 1500 < seconds[450]
    assert 50 < sum(each.is_elastic for each in jobs) < 150
    assert 250 < sum(each.arrives_at == 0.0 for each in jobs) < 350
    assert jobs == mix(500, seed=3) != mix(500, seed=4)
