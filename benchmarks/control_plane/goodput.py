"""Time of one goodput ledger from a served API: a job with a month of steps, on both databases.

One step per second, each recorded: 2.6 million points in each of two series, in thirty attempts,
each of which lost the steps since its last save. The cost of a ledger grows with the stored chunks,
a thousandth of the points, and with the attempts: for each, the chunk of the last kept step is
decoded.

    python -m benchmarks.control_plane.goodput [--steps 2592000] [--ledgers 20]
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
from sqlalchemy import insert, select

from benchmarks.control_plane.servers import (
    PACKAGES,
    Store,
    add_running,
    run_on_databases,
    served_client,
)
from benchmarks.report import emit, percentile
from server.core.context import Context
from server.core.database.tables import attempts, events
from server.telemetry.goodput.step_sums import DATA, STEP
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.store import store_points
from trainyard.protocol.event_kinds import EventKind
from trainyard.run.checkpoints.checkpoint_names import checkpoint_id

ATTEMPTS = 30
BATCH = 20_000
LOST = 500
"""Steps that each attempt except the last loses."""
TARGET_MS = 500.0


def fill(opened: Store, steps: int) -> str:
    """Store a job with its attempts and their points; return its id."""
    context = opened.context
    running = add_running(context, "goodput")
    first_attempt = select(attempts).where(attempts.c.id == running.attempt_id)
    with context.database.read() as connection:
        template = dict(connection.execute(first_attempt).mappings().one())
    own = steps // ATTEMPTS
    for number in range(1, ATTEMPTS + 1):
        start = (own - LOST) * (number - 1)
        attempt_id = running.attempt_id if number == 1 else context.new_id()
        with context.database.write() as connection:
            if number > 1:
                parent = checkpoint_id(running.job_id, number - 1, start)
                later = {"number": number, "start_step": start, "parent_checkpoint_id": parent}
                connection.execute(insert(attempts).values(template | {"id": attempt_id} | later))
            connection.execute(insert(events).values(_placed(context, running.job_id, number)))
        for first in range(start, start + own, BATCH):
            taken = np.arange(first, min(first + BATCH, start + own), dtype=np.int64) + 1
            seconds = np.full(len(taken), 1.0)
            by_name = {
                STEP: Points(taken, taken / 1.0, seconds),
                DATA: Points(taken, taken / 1.0, seconds / 10),
            }
            with context.database.write() as connection:
                store_points(connection, attempt_id, by_name)
    return running.job_id


def _placed(context: Context, job_id: str, number: int) -> dict[str, Any]:
    return {
        "at": context.now(),
        "kind": EventKind.PLACED.value,
        "job_id": job_id,
        "attempt": number,
        "actor": "benchmark",
        "message": "",
        "data": {},
    }


def measure(opened: Store, *, steps: int, ledgers: int) -> bool:
    """Read ledgers and print the figure."""
    job_id = fill(opened, steps)
    seconds: list[float] = []
    with served_client(opened) as client:
        for _ in range(ledgers):
            started = time.perf_counter()
            view = client.get(f"/jobs/{job_id}/goodput").raise_for_status().json()
            seconds.append(time.perf_counter() - started)
            total = sum(each["milliseconds"] for each in view["categories"])
            assert total == view["wall_milliseconds"]
    return emit(
        "goodput_ledger",
        figure=percentile(seconds, 0.95) * 1000,
        unit="ms (p95)",
        target=TARGET_MS,
        at_least=False,
        packages=PACKAGES,
        database=opened.kind,
        median_ms=round(percentile(seconds, 0.5) * 1000, 1),
        steps=steps,
        attempts=ATTEMPTS,
        ledgers=ledgers,
    )


def main() -> int:
    """Measure on both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2_592_000)
    parser.add_argument("--ledgers", type=int, default=20)
    return run_on_databases(
        parser,
        lambda opened, given: measure(opened, steps=given.steps, ledgers=given.ledgers),
    )


if __name__ == "__main__":
    sys.exit(main())
