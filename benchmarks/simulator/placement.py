"""Processor time of one placement round in a long queue in which nothing fits, by its parts.

10,000 jobs wait in several projects, in four sizes, and attempts with known ends hold most slots of
1,000 nodes. Before each round another job arrives, so that it is read and decided anew with
everything that backfill needs. The first round of a scheduler, which reads all jobs, is shown
separately.

    python -m benchmarks.simulator.placement [--jobs 10000] [--projects 50] [--rounds 20]
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from datetime import timedelta

from benchmarks.control_plane.servers import Store, store
from benchmarks.report import emit, percentile
from benchmarks.simulator.clock import BEGINNING, VirtualClock
from benchmarks.simulator.cluster import (
    add_jobs,
    add_nodes,
    add_projects,
    read_placed,
    report,
    start,
)
from benchmarks.simulator.simulation import Messages
from benchmarks.simulator.trace import SLOTS_PER_NODE, TracedJob
from server.cluster.nodes.capacity import read_capacity
from server.cluster.placement.decide import decide
from server.cluster.projects.quotas import read_quotas
from server.core.context import Context
from server.jobs.queue.groups import enter_groups
from server.jobs.queue.heads import read_heads
from server.jobs.queue.scheduling_queue import group_sizes
from server.scheduler.rounds.leader import Leader, leading
from server.scheduler.rounds.loop import TICK_SECONDS, collect_seldom
from server.scheduler.rounds.round import Placer

TARGET_MS = 100.0
PACKAGES = ("pydantic", "sqlalchemy")
SIZES = (1_000, 2_000, 3_000, 4_000)
"""Sizes of the waiting jobs: none fits before attempts on many nodes have ended."""
RUNNING_SECONDS = 3600.0


def measure(opened: Store, *, jobs: int, projects: int, nodes: int, rounds: int) -> bool:
    """Run rounds in which nothing can start; print the figure."""
    clock = VirtualClock()
    leader = Leader(opened.context.database)
    epoch = leader.held()
    assert epoch is not None, "a new database has no leader"
    context = leading(replace(opened.context, clock=clock), leader, epoch)
    names = [f"project-{number:03}" for number in range(projects)]
    add_nodes(context, nodes)
    add_projects(context, dict.fromkeys(names, 1.0))
    running = [_job(f"running-{n}", names[n % projects], SLOTS_PER_NODE) for n in range(nodes)]
    add_jobs(context, [(job, BEGINNING) for job in running[: nodes - nodes // 16]])
    messages = Messages()
    while Placer(context, messages).run():
        pass
    placed = read_placed(context, messages.attempt_ids)
    start(context, placed)
    ends = [
        (each.job_id, BEGINNING + timedelta(seconds=RUNNING_SECONDS + number))
        for number, each in enumerate(placed)
    ]
    report(context, ends)
    waiting = [_job(f"w-{n}", names[n % projects], SIZES[n // projects % 4]) for n in range(jobs)]
    add_jobs(context, [(job, BEGINNING + timedelta(seconds=1)) for job in waiting])
    clock.seconds = 2.0
    while enter_groups(context):
        pass
    placer = Placer(context, messages)
    seconds: list[float] = []
    for number in range(rounds + 1):
        clock.seconds += TICK_SECONDS
        late = _job(f"late-{number}", names[number % projects], SIZES[number % 4])
        add_jobs(context, [(late, clock.now())])
        began = time.process_time()
        assert placer.run() == 0
        seconds.append(time.process_time() - began)
    parts = [_seconds_of_parts(context, placer) for _ in range(rounds)]
    return emit(
        "placement_round",
        figure=percentile(seconds[1:], 0.5) * 1000,
        unit="CPU ms (median)",
        target=TARGET_MS,
        at_least=False,
        packages=PACKAGES,
        database=opened.kind,
        p95_ms=round(percentile(seconds[1:], 0.95) * 1000, 1),
        first_ms=round(seconds[0] * 1000, 1),
        parts_ms={
            name: round(percentile([each[name] for each in parts], 0.5) * 1000, 1)
            for name in parts[0]
        },
        jobs=jobs,
        projects=projects,
        groups=len(SIZES),
        nodes=nodes,
        rounds=rounds,
    )


def _seconds_of_parts(context: Context, placer: Placer) -> dict[str, float]:
    """Return the processor time of each part of a round that writes nothing."""
    with context.database.read() as connection:
        began = time.process_time()
        capacity = read_capacity(connection, context.now())
        quotas = read_quotas(connection, context.now())
        nodes_read = time.process_time()
        sizes = group_sizes(connection)
        free = sum(len(offer.free) for offer in capacity.offers)
        heads = read_heads(connection, placer.queue, sizes=sizes, quotas=quotas, free_slots=free)
        queue = [row.queued for row in heads.rows]
        queue_read = time.process_time()
        decide(
            queue,
            capacity.offers,
            holdings=capacity.holdings,
            now=context.now(),
            cut=heads.cut,
            complete=heads.complete,
            quotas=quotas,
        )
        decided = time.process_time()
    return {
        "nodes and attempts": nodes_read - began,
        "queue": queue_read - nodes_read,
        "decide": decided - queue_read,
    }


def _job(name: str, project: str, size: int) -> TracedJob:
    return TracedJob(name, project, 0, size, 0.0, RUNNING_SECONDS, None)


def main() -> int:
    """Measure on the named databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--projects", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--databases", nargs="+", default=["sqlite"])
    given = parser.parse_args()
    collect_seldom()  # as the scheduler's process does
    passed = True
    for kind in given.databases:
        with store(kind) as opened:
            passed &= measure(
                opened,
                jobs=given.jobs,
                projects=given.projects,
                nodes=given.nodes,
                rounds=given.rounds,
            )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
