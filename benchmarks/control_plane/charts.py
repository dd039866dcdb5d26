"""Time of one chart from a served API, with ten million stored points, on both databases.

Ten series of a million points each, every thousandth of them NaN. The last few hundred of each are
still live, so that chunks and buckets do not align. It measures a whole series in 1,000 buckets,
and a tenth of it, for which chunks must be decoded.

    python -m benchmarks.control_plane.charts [--points 1000000] [--charts 100]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from itertools import pairwise

import httpx
import numpy as np

from benchmarks.control_plane.servers import (
    PACKAGES,
    Running,
    Store,
    add_running,
    run_on_databases,
    served_client,
)
from benchmarks.report import emit, percentile
from server.telemetry.metrics.points import Points
from server.telemetry.metrics.store import store_points

SERIES = 10
BATCH = 20_000
LIVE = 730
NAN_EVERY = 1000
BUCKETS = 1000
TARGETS_MS = {"chart_whole_series": 60.0, "chart_a_tenth": 100.0}


def fill(opened: Store, running: Running, points: int) -> None:
    """Store the points of all series, the last `LIVE` of them in separate reports."""
    chance = np.random.default_rng(0)
    edges = [*range(0, points - LIVE, BATCH), points - LIVE, points]
    for first, end in pairwise(edges):
        steps = np.arange(first, end, dtype=np.int64) + 1
        by_name = {}
        for number in range(SERIES):
            values = chance.normal(2.0, 0.1, len(steps))
            values[steps % NAN_EVERY == 0] = np.nan
            by_name[f"bench/series_{number}"] = Points(steps, steps / 10.0, values)
        with opened.context.database.write() as connection:
            store_points(connection, running.attempt_id, by_name)


def measure(opened: Store, *, points: int, charts: int) -> bool:
    """Draw charts and print the figures."""
    running = add_running(opened.context, "charts")
    started = time.perf_counter()
    fill(opened, running, points)
    fill_seconds = time.perf_counter() - started
    chance = random.Random(0)
    tenth = points // 10
    windows = {
        "chart_whole_series": [(1, points)] * charts,
        "chart_a_tenth": [
            (first, first + tenth - 1)
            for first in chance.choices(range(1, points - tenth), k=charts)
        ],
    }
    passed = True
    with served_client(opened) as client:
        for name, spans in windows.items():
            seconds, buckets = draw(client, running.job_id, spans)
            passed &= emit(
                name,
                figure=percentile(seconds, 0.95) * 1000,
                unit="ms (p95)",
                target=TARGETS_MS[name],
                at_least=False,
                packages=PACKAGES,
                database=opened.kind,
                median_ms=round(percentile(seconds, 0.5) * 1000, 1),
                points_of_series=points,
                points_stored=points * SERIES,
                buckets=buckets,
                charts=charts,
                fill_points_per_second=round(points * SERIES / fill_seconds),
            )
    return passed


def draw(
    client: httpx.Client, job_id: str, spans: Sequence[tuple[int, int]]
) -> tuple[list[float], int]:
    """Return the time of each chart and the number of buckets; no point may be missing."""
    seconds: list[float] = []
    buckets = 0
    for number, (first, last) in enumerate(spans):
        query: dict[str, str | int] = {
            "names": f"bench/series_{number % SERIES}",
            "max_points": BUCKETS,
            "from_step": first,
            "to_step": last,
        }
        started = time.perf_counter()
        response = client.get(f"/jobs/{job_id}/metrics", params=query)
        seconds.append(time.perf_counter() - started)
        (curve,) = response.raise_for_status().json()["curves"]
        assert sum(curve["count"]) == last - first + 1
        assert sum(curve["non_finite"]) == last // NAN_EVERY - (first - 1) // NAN_EVERY
        buckets = len(curve["steps"])
    return seconds, buckets


def main() -> int:
    """Measure on both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--charts", type=int, default=100)
    return run_on_databases(
        parser,
        lambda opened, given: measure(opened, points=given.points, charts=given.charts),
    )


if __name__ == "__main__":
    sys.exit(main())
