"""Figures of the scheduler over a whole trace: `python -m benchmarks.simulator`.

    python -m benchmarks.simulator [--whole] [--jobs 60000] [--nodes 1000] [--seed 1]
        [--shapes kueue heavy_tail heavy_tail_wide heavy_tail_saturated]
        [--known nothing history bounds] [--database sqlite]

Prints a line of JSON for each figure of each shape. Exits with 1 if one misses its target, or if a
single decision delays the head of the queue. docs/benchmarks-scheduler.md explains the figures.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial

from benchmarks.control_plane.servers import store
from benchmarks.report import emit, percentile
from benchmarks.simulator.simulation import Record, Simulation
from benchmarks.simulator.trace import KNOWN, SHAPES, Known, Trace, shortest_makespan
from server.cluster.placement.demand import LEAVES_WITHIN
from server.scheduler.rounds.loop import TICK_SECONDS, collect_seldom

PACKAGES = ("pydantic", "sqlalchemy")
PLACEMENTS_PER_SECOND = 500.0
UNFAIRNESS = 0.05
MEMORY_GROWTH = 1.1
MAKESPAN_FACTOR = 2.0
"""A list schedule of rigid jobs on one resource takes less than twice the shortest makespan."""
LONGEST_LISTED = 5
LONGEST_KEPT = LEAVES_WITHIN.total_seconds() + 2 * TICK_SECONDS
"""Seconds for which the head may wait for attempts that give way, which are about to end."""


def cost_figures(record: Record, line: Callable[..., bool], *, is_judged: bool) -> bool:
    """Print the scheduler's work and times; return whether every figure reaches its target.

    Args:
        record: results of a run.
        line: prints a figure.
        is_judged: whether placements per second have a target.
    """
    passed = line(
        "simulator_violations",
        figure=len(record.violations),
        unit="decisions",
        target=0,
        at_least=False,
        first=record.violations[:LONGEST_LISTED],
        placements=record.placements,
        backfills=record.backfills,
    )
    milliseconds = [seconds * 1000 for seconds in record.round_seconds]
    passed &= line(
        "simulator_placements",
        figure=record.placements / record.scheduler_cpu_seconds,
        unit="placements/CPU s",
        target=PLACEMENTS_PER_SECOND if is_judged else None,
        at_least=True,
        rounds=len(milliseconds),
        busy=round(record.scheduler_cpu_seconds / record.makespan, 4),
        round_ms={
            "median": round(statistics.median(milliseconds), 1),
            "p99": round(percentile(milliseconds, 0.99), 1),
            "max": round(max(milliseconds), 1),
        },
        most_waiting=record.most_waiting,
    )
    quarter = max(len(record.memory_mib) // 4, 1)
    return passed & line(
        "simulator_memory",
        figure=statistics.mean(record.memory_mib[-quarter:])
        / statistics.mean(record.memory_mib[quarter : 2 * quarter] or record.memory_mib),
        unit="last quarter / second quarter",
        target=MEMORY_GROWTH,
        at_least=False,
        memory_mib=[round(each, 1) for each in record.memory_mib],
    )


def order_figures(
    record: Record, trace: Trace, line: Callable[..., bool], *, is_judged: bool
) -> bool:
    """Print the waits and the utilisation of the cluster; return whether they reach their targets.

    Args:
        record: results of a run.
        trace: the trace of the run.
        line: prints a figure.
        is_judged: whether waits of heads and shares of projects have a target.
    """
    passed = line(
        "simulator_head_wait",
        figure=max(
            (waited / (bound + TICK_SECONDS) for waited, bound in record.head_waits), default=0
        ),
        unit="of the bound",
        target=1.0 if is_judged else None,
        at_least=False,
        longest_as_head=round(max((waited for waited, _ in record.head_waits), default=0.0), 1),
        longest_waits=[
            {"seconds": round(waited, 1), "job": job.name, "world_size": job.world_size}
            for waited, job in sorted(record.waits, key=lambda wait: -wait[0])[:LONGEST_LISTED]
        ],
    )
    if record.contended_seconds:
        passed &= line(
            "simulator_fairness",
            figure=max(abs(share - 1) for share in shares_by_weight(record, trace).values()),
            unit="largest deviation of a project's slot-time from its weight",
            target=UNFAIRNESS if is_judged else None,
            at_least=False,
            contended_seconds=round(record.contended_seconds, 1),
        )
    work = sum(job.slot_seconds for job in trace.jobs)
    bound = shortest_makespan(trace)
    passed &= line(
        "simulator_makespan",
        figure=record.makespan / bound,
        unit="of the shortest possible",
        target=MAKESPAN_FACTOR,
        at_least=False,
        makespan_seconds=round(record.makespan, 1),
        bound_seconds=round(bound, 1),
        utilisation=round(work / trace.slots / record.makespan, 4),
        best_utilisation=round(work / trace.slots / bound, 4),
    )
    return passed


def backfill_figures(record: Record, trace: Trace, line: Callable[..., bool]) -> bool:
    """Print the effect of backfill; return whether it delays no head of the queue."""
    waits = [waited for waited, _ in record.waits]
    slots = trace.slots * max(record.waiting_seconds, 1.0)
    passed = line(
        "simulator_waits",
        figure=sum(waits) / len(trace.jobs),
        unit="s (mean of a job)",
        target=None,
        at_least=False,
        seconds={
            "median": round(statistics.median(waits), 1),
            "p90": round(percentile(waits, 0.9), 1),
            "max": round(max(waits), 1),
        },
        backfills=record.backfills,
        utilisation_while_jobs_wait=round(record.held_while_waiting / slots, 4),
    )
    passed &= line(
        "simulator_kept_heads",
        figure=max(record.kept_seconds, default=0.0),
        unit="s (longest)",
        target=LONGEST_KEPT,
        at_least=False,
        heads=len(record.kept_seconds),
        gave_way=record.left,
    )
    if record.expected:
        errors = [abs(each - 1) for each in record.expected]
        line(
            "simulator_expected_ends",
            figure=statistics.median(errors),
            unit="median error of expected durations, of the real ones",
            target=None,
            at_least=False,
            p90=round(percentile(errors, 0.9), 3),
            expected=len(errors),
            too_short_by_half=sum(2 * each < 1 for each in record.expected),
        )
    return passed


def shares_by_weight(record: Record, trace: Trace) -> dict[str, float]:
    """Return each project's slot-time while all projects waited, relative to its weight."""
    held = record.contended_slot_seconds
    whole, weights = sum(held.values()), sum(trace.weights.values())
    return {
        project: held[project] / whole / (weight / weights)
        for project, weight in trace.weights.items()
    }


def run_shape(name: str, trace: Trace, *, known: Known, given: argparse.Namespace) -> bool:
    """Run a trace on a new database; return whether every figure reaches its target."""
    shape = SHAPES[name]
    with store(given.database) as opened:
        simulation = Simulation(opened, trace, known=known, rounds_take_time=shape.saturates)
        record = simulation.run()
    line = partial(
        emit,
        packages=PACKAGES,
        shape=name,
        known=known,
        database=given.database,
        jobs=len(trace.jobs),
        projects=len(trace.weights),
        slots=trace.slots,
        nodes=trace.nodes,
        seed=given.seed,
    )
    passed = cost_figures(record, line, is_judged=not shape.arrives_singly)
    if not shape.saturates:
        # Without backfill a job of another project may pass a head that waits for large slots.
        is_judged = shape.is_even and known == shape.known[-1]
        passed &= order_figures(record, trace, line, is_judged=is_judged)
        passed &= backfill_figures(record, trace, line)
    return passed


def main() -> int:
    """Run each shape on a new database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=[*SHAPES])
    parser.add_argument("--whole", action="store_true", help="all jobs of the traces: an hour")
    parser.add_argument("--jobs", type=int, help="of each shape")
    parser.add_argument("--nodes", type=int, help="of 8 slots each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--known", nargs="+", choices=KNOWN, help="of durations of new jobs")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    given = parser.parse_args()
    collect_seldom()  # as the scheduler's process does
    passed = True
    for name in given.shapes:
        shape = SHAPES[name]
        jobs, nodes = shape.whole if given.whole else shape.sample
        trace = shape.make(given.jobs or jobs, given.nodes or nodes, given.seed)
        for known in given.known or shape.known:
            passed &= run_shape(name, trace, known=known, given=given)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
