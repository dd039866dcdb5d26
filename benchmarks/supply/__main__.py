"""Figures of supply for a queue over three sources: `python -m benchmarks.supply`.

    python -m benchmarks.supply [--jobs 500] [--seeds 1 2 3] [--idle-seconds 45]
        [--database sqlite] [--check]

Prints a line of JSON for each figure of each seed; exits with 1 if one misses its target. `--check`
runs a tiny queue without a target for idle time. docs/benchmarks-scheduler.md explains the figures.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.control_plane.servers import store
from benchmarks.report import emit
from benchmarks.supply.mix import SOURCES, mix
from benchmarks.supply.simulation import Simulation, simulate
from server.scheduler.rounds.loop import collect_seldom
from trainyard.protocol.states import JobState

PACKAGES = ("pydantic", "sqlalchemy")
IDLE_SHARE = 0.05
WITHOUT_DEMAND_SECONDS = 60.0
CHECKED_JOBS = 8
HOUR = 3600.0


def figures(run: Simulation, line: Callable[..., bool], *, is_judged: bool) -> bool:
    """Print the results of a run; return whether every figure reaches its target.

    Args:
        run: a finished run.
        line: prints a figure.
        is_judged: whether the idle time has a target.
    """
    record = run.record
    violations = [*record.violations, *broken(run)]
    passed = line(
        "supply_violations",
        figure=len(violations),
        unit="broken rules",
        target=0,
        at_least=False,
        first=violations[:5],
        jobs_by_state=Counter(run.states().values()),
        attempts=run.training.attempts,
    )
    total = sum(record.node_seconds.values())
    passed &= line(
        "supply_idle",
        figure=sum(record.idle_seconds.values()) / total,
        unit="of the node-hours",
        target=IDLE_SHARE if is_judged else None,
        at_least=False,
        node_hours=_hours(record.node_seconds),
        idle_node_hours=_hours(record.idle_seconds),
        idle_by_cause=_hours(record.idle_causes),
        idle_slot_hours=round(record.idle_slot_seconds / HOUR, 2),
        idle_slot_share=round(record.idle_slot_seconds / record.slot_seconds, 4),
        lost_slot_hours=round(run.training.lost_slot_seconds / HOUR, 2),
        makespan_hours=round(run.seconds / HOUR, 2),
        rounds=run.rounds,
    )
    rows = run.requests()
    withdrawn = [row for row in rows if row.started_at is None]
    return passed & line(
        "supply_without_demand",
        figure=record.longest_without_demand,
        unit="s that a request waited without a job that needs it",
        target=WITHOUT_DEMAND_SECONDS,
        at_least=False,
        longest_idle=record.longest_idle,
        requests=dict(Counter(row.source for row in rows)),
        nodes_requested=sum(row.nodes for row in rows),
        withdrawn=len(withdrawn),
        nodes_released=sum(row.nodes for row in rows if row.cancel_at and row.started_at),
    )


def broken(run: Simulation) -> list[str]:
    """Return the rules that a run broke as a whole: each job ends, its work is done once."""
    found = [f"two attempts of {name} trained at once" for name in run.training.doubled]
    states = run.states()
    for work in run.works.values():
        state, name = states[work.job_id], work.job.name
        cancelled = state == JobState.CANCELLED and work.job.cancelled_at is not None
        if not cancelled and (state, work.succeeded) != (JobState.SUCCEEDED, 1):
            found.append(f"{name} is {state} after {work.succeeded} complete trainings")
    for name, engine in run.engines.items():
        hours, most = engine.node_hours(), engine.source.limits.node_hours_per_month
        if most is not None and hours > most:
            found.append(f"{name}: {hours:.1f} node-hours, the limit is {most:g}")
        if engine.cut_off:
            found.append(f"{name}: {engine.cut_off} nodes trained when their allocation ended")
    return found


def _hours(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(each / HOUR, 2) for name, each in sorted(seconds.items())}


def main() -> int:
    """Run the queue of each seed on a new database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--idle-seconds", type=float, default=45.0, help="of each source")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--check", action="store_true", help="a tiny queue, in some seconds")
    given = parser.parse_args()
    logging.getLogger("provisioner").setLevel(logging.ERROR)  # simulated errors are no news
    collect_seldom()  # as the scheduler's process does
    count, seeds = (CHECKED_JOBS, [1]) if given.check else (given.jobs, given.seeds)
    passed = True
    for seed in seeds:
        with store(given.database) as opened:
            run = simulate(
                opened, mix(count, seed), SOURCES, seed=seed, idle_seconds=given.idle_seconds
            )
            line = partial(
                emit,
                packages=PACKAGES,
                database=given.database,
                jobs=count,
                seed=seed,
                idle_seconds=given.idle_seconds,
            )
            passed &= figures(run, line, is_judged=not given.check)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
