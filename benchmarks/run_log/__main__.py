"""Cost of `run.log` for a script and for the server, which is away at first.

Processes log 100 values at 10 Hz and time their calls while no server accepts anything: their files
are the spool. Then the spool is reported to a server on SQLite until it is empty, and every value
is compared. Last, records of 100 ranks are replayed to the server alone.

    python -m benchmarks.run_log [--processes 16] [--seconds 60] [--replayed-ranks 100]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sqlalchemy import func, select

from benchmarks.control_plane.reports import ReportMaker
from benchmarks.control_plane.servers import PACKAGES, Running, Store, add_running, store
from benchmarks.report import emit
from benchmarks.run_log.calls import emit_calls
from server.api.auth.tokens import hash_token
from server.core.database.metric_and_log_tables import metric_chunks, metric_series, metric_tails
from server.jobs.attempts.reports import authenticate_share
from server.telemetry.ingest.receive import store_report
from server.telemetry.metrics.points import POINT_BYTES
from trainyard.protocol.worker_messages import Chunk, Report
from trainyard.run.directory import RunDirectory
from trainyard.run.record_base import to_json
from trainyard.run.records import MetricRecord
from worker.node.node_store import WorkerRun
from worker.supervisor.spool import Spool

VALUES = 100
HERTZ = 10
RANK = """
import json, sys, time
import trainyard
run = trainyard.init()
steps, start = int(sys.argv[1]), float(sys.argv[2])
names = [f"bench/value_{number}" for number in range(int(sys.argv[3]))]
calls = []
for step in range(1, steps + 1):
    time.sleep(max(0.0, start + step / int(sys.argv[4]) - time.time()))
    values = dict.fromkeys(names, float(step + run.rank))
    before, processor = time.perf_counter(), time.thread_time()
    run.log(values, step=step)
    calls.append((time.perf_counter() - before, time.thread_time() - processor))
print(json.dumps(calls))
"""


def log(folder: Path, *, processes: int, steps: int) -> list[tuple[float, float]]:
    """Let processes log into a run directory; return the wall and processor time of each call."""
    start = time.time() + 2 + processes / 4
    words = [sys.executable, "-c", RANK, str(steps), str(start), str(VALUES), str(HERTZ)]
    started = [
        subprocess.Popen(
            words,
            env=os.environ
            | {"TRAINYARD_RUN": str(folder), "LOCAL_RANK": str(rank)}
            | {"RANK": str(rank), "WORLD_SIZE": str(processes)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    calls: list[tuple[float, float]] = []
    for process in started:
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a process that logs ended with {process.returncode}")
        calls += [(wall, processor) for wall, processor in json.loads(output)]
    return calls


def send(opened: Store, running: Running, report: Report) -> dict[str, int]:
    """Store a report; return the stored offsets."""
    share = authenticate_share(opened.context, running.attempt_id, hash_token(running.token))
    return dict(store_report(opened.context, share, report).acknowledged)


def report_of(maker: ReportMaker, chunks: tuple[Chunk, ...]) -> Report:
    """Return a report with these chunks."""
    empty = Report.model_validate_json(maker.make(steps=0))
    return empty.model_copy(update={"chunks": chunks, "heartbeat": None})


def catch_up(opened: Store, folder: Path, running: Running, *, processes: int) -> int:
    """Report a run directory until the server has all of it; return the number of reports."""
    spool = Spool(WorkerRun(folder), ranks=(), processes=range(processes))
    maker, reports = ReportMaker(running, seed=0), 0
    while not spool.drained:
        spool.acknowledge(send(opened, running, report_of(maker, spool.chunks())))
        reports += 1
    return reports


def points(opened: Store, running: Running) -> dict[str, int]:
    """Return the number of points at the server, by series."""
    found: dict[str, int] = {}
    with opened.context.database.read() as connection:
        for table, count in (
            (metric_tails, func.sum(func.length(metric_tails.c.points)) / POINT_BYTES),
            (metric_chunks, func.sum(metric_chunks.c.count)),
        ):
            query = (
                select(metric_series.c.name, count)
                .join(table, table.c.series_id == metric_series.c.id)
                .where(metric_series.c.attempt_id == running.attempt_id)
                .group_by(metric_series.c.name)
            )
            for name, some in connection.execute(query):
                found[name] = found.get(name, 0) + int(some)
    return found


def measure_calls(opened: Store, *, processes: int, seconds: int) -> bool:
    """Measure the calls, and check that nothing is lost; print both figures."""
    steps = seconds * HERTZ
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        folder = Path(name)
        calls, processor = np.array(log(folder, processes=processes, steps=steps)).T
        fast = emit_calls(
            "run_log_call",
            calls,
            processor,
            processes=processes,
            values=VALUES,
            hertz=HERTZ,
        )
        running = add_running(opened.context, "logs", slots=processes)
        started = time.perf_counter()
        reports = catch_up(opened, folder, running, processes=processes)
        took = time.perf_counter() - started
        written = sum(
            RunDirectory(folder).metrics_of(rank).read_bytes().count(b"\n")
            for rank in range(processes)
        )
    stored = points(opened, running)
    # The last step waits for the end of the attempt: no rank is at a later one.
    folded = VALUES * (steps - 1) * (3 if processes > 1 else 0)
    lost = processes * steps - written + (VALUES * steps + folded - sum(stored.values()))
    kept = emit(
        "run_log_lost",
        figure=lost,
        unit="records and points",
        target=0,
        at_least=False,
        packages=PACKAGES,
        seconds_without_server=seconds,
        records=written,
        points=sum(stored.values()),
        reports=reports,
        caught_up_in_seconds=round(took, 1),
    )
    return fast and kept


def second_of(maker: ReportMaker, ranks: int, second: int) -> Iterator[Chunk]:
    """Yield the chunks of all ranks of one second."""
    for rank in range(ranks):
        file = f"metrics:{rank}" if rank else "metrics"
        lines = b"".join(
            to_json(
                MetricRecord(
                    step=second * HERTZ + tick + 1,
                    time=time.time(),
                    values={f"bench/value_{n}": (n + rank + tick) / 7 for n in range(VALUES)},
                    ranks=ranks,
                )
            ).encode()
            + b"\n"
            for tick in range(HERTZ)
        )
        yield maker.chunk(file, lines)


def measure_server(opened: Store, *, ranks: int, seconds: int, ranks_a_report: int = 8) -> bool:
    """Replay the records of many ranks in reports of nodes of eight; print the server's share."""
    running = add_running(opened.context, "replay", slots=ranks)
    maker, took, busy = ReportMaker(running, seed=1), 0.0, 0.0
    for second in range(seconds):
        chunks = tuple(second_of(maker, ranks, second))
        nodes = [
            report_of(maker, chunks[first : first + ranks_a_report])
            for first in range(0, ranks, ranks_a_report)
        ]
        started, processor = time.perf_counter(), time.process_time()
        for node in nodes:
            send(opened, running, node)
        took += time.perf_counter() - started
        busy += time.process_time() - processor
    stored = points(opened, running)
    expected = VALUES * (seconds * HERTZ + 3 * (seconds * HERTZ - 1))
    if sum(stored.values()) != expected:
        raise RuntimeError(f"{expected} points were sent, and {sum(stored.values())} are stored")
    return emit(
        "run_log_server_share",
        figure=busy / seconds,
        unit="s of a core for a second of training",
        target=0.5,
        at_least=False,
        packages=PACKAGES,
        ranks=ranks,
        values=VALUES,
        hertz=HERTZ,
        seconds=seconds,
        by_the_wall_clock=round(took / seconds, 2),
    )


def main() -> int:
    """Measure all; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--replayed-ranks", type=int, default=100)
    parser.add_argument("--replayed-seconds", type=int, default=10)
    given = parser.parse_args()
    with store("sqlite") as opened:
        passed = measure_calls(opened, processes=given.processes, seconds=given.seconds)
        passed &= measure_server(opened, ranks=given.replayed_ranks, seconds=given.replayed_seconds)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
