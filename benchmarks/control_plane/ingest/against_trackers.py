"""Processor time of a logged point: MLflow's server, Trackio's and ours, alternating.

Each server is one process with SQLite in a new folder. One client sends the same steps of ten
values over HTTP, with a number of values per request: by MLflow's `log-batch` (at most 1,000), by
Trackio's `bulk_log`, and by reports in a supervisor's format. The figure is the processor time per
point of all processes of the other server, as a multiple of ours, as the median of the rounds. The
number of stored points is read from each database. The other two are not packages of ours, so they
need their own Python; without it nothing is measured:

    python -m venv trackers && trackers/bin/pip install mlflow==3.17.2 trackio==0.43.0
    python -m benchmarks.control_plane.ingest.against_trackers trackers/bin/python [--rounds 7]
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.control_plane.capacity.runs import processor_seconds
from benchmarks.control_plane.reports import SERIES, ReportMaker, metric_lines
from benchmarks.control_plane.servers import (
    API,
    HOST,
    PACKAGES,
    Process,
    add_running,
    served,
    store,
    stored_points,
    wait_until_it_answers,
)
from benchmarks.report import emit
from embedded.child import any_free_port

TARGETS = {"mlflow": 20.0, "trackio": None}
WRITE_TOKEN = "benchmark"
TRACKIO = "import trackio; trackio.show(host='127.0.0.1', open_browser=False, block_thread=True)"
SETTLE_SECONDS = 30.0
"""Time limit for storing acknowledged points."""


@dataclass(frozen=True)
class Tracker:
    """A running server, and how to send points to it."""

    process: Process
    headers: Mapping[str, str]
    path: str
    bodies: Callable[[int, int], Sequence[bytes]]
    """Returns the bodies of a number of requests, each with a number of steps."""
    stored: Callable[[], int]
    """Returns the number of stored points."""


@contextmanager
def trainyard(_python: str) -> Iterator[Tracker]:
    """Serve this API."""
    with store("sqlite") as opened:
        running = add_running(opened.context, "benchmark")
        maker = ReportMaker(running, seed=0)
        with served(opened) as api:
            yield Tracker(
                api,
                {"authorization": f"Bearer {running.token}"},
                f"{API}/workers/attempts/{running.attempt_id}/report",
                lambda requests, steps: [maker.make(steps=steps) for _ in range(requests)],
                lambda: stored_points(opened),
            )


@contextmanager
def mlflow(python: str) -> Iterator[Tracker]:
    """Serve MLflow's API with one worker process."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        database, port = Path(name) / "mlflow.db", any_free_port(HOST)
        own = ("--backend-store-uri", f"sqlite:///{database}", "--artifacts-destination", name)
        place = ("--host", HOST, "--port", str(port), "--workers", "1")
        command = (python, "-m", "mlflow", "server", *own, *place)
        with _running(
            command, Path(name), port=port, environment={"MLFLOW_DISABLE_TELEMETRY": "true"}
        ) as process:
            request = {"experiment_id": "0", "start_time": 0}
            api = f"{process.url}/api/2.0/mlflow/runs"
            run = httpx.post(f"{api}/create", json=request, timeout=60).raise_for_status().json()
            run_id = run["run"]["info"]["run_id"]
            yield Tracker(
                process,
                {},
                "/api/2.0/mlflow/runs/log-batch",
                lambda requests, steps: [
                    _mlflow_body(run_id, batch) for batch in _batches(requests, steps)
                ],
                lambda: _count(database),
            )


@contextmanager
def trackio(python: str) -> Iterator[Tracker]:
    """Serve Trackio's API."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        port = any_free_port(HOST)
        environment = {
            "GRADIO_SERVER_PORT": str(port),
            "TRACKIO_DIR": name,
            "TRACKIO_WRITE_TOKEN": WRITE_TOKEN,
            "GRADIO_ANALYTICS_ENABLED": "False",
            "HF_HUB_OFFLINE": "1",
        }
        with _running(
            (python, "-c", TRACKIO), Path(name), port=port, environment=environment
        ) as process:
            yield Tracker(
                process,
                {"x-trackio-write-token": WRITE_TOKEN},
                "/api/bulk_log",
                lambda requests, steps: [_trackio_body(b) for b in _batches(requests, steps)],
                # A row has the values of one step.
                lambda: SERIES * _count(Path(name) / "benchmark.db"),
            )


SERVERS = {"trainyard": trainyard, "mlflow": mlflow, "trackio": trackio}


def cost(name: str, python: str, *, requests: int, values: int) -> float:
    """Return the processor time of a server per point, in microseconds.

    Args:
        name: name of the server.
        python: interpreter of the other servers.
        requests: number of measured requests, after one that is not measured.
        values: values per request, a multiple of `SERIES`.
    """
    with SERVERS[name](python) as tracker:
        headers = {**tracker.headers, "content-type": "application/json"}
        first, *bodies = tracker.bodies(requests + 1, values // SERIES)
        with httpx.Client(base_url=tracker.process.url, headers=headers, timeout=120) as client:
            client.post(tracker.path, content=first).raise_for_status()  # one-time work
            _wait_for(tracker, values)
            before = processor_seconds(tracker.process.pid)
            for body in bodies:
                client.post(tracker.path, content=body).raise_for_status()
            _wait_for(tracker, values * (len(bodies) + 1))
            spent = processor_seconds(tracker.process.pid) - before
    return spent / (values * len(bodies)) * 1e6


def measure(python: str, *, requests: int, values: int, rounds: int) -> bool:
    """Measure the servers alternately, and print the figures."""
    costs: dict[str, list[float]] = {name: [] for name in SERVERS}
    for _ in range(rounds):
        for name, measured in costs.items():
            measured.append(cost(name, python, requests=requests, values=values))
    versions = _versions(python)
    reached = True
    for name, target in TARGETS.items():
        ratios = [other / own for other, own in zip(costs[name], costs["trainyard"], strict=True)]
        reached &= emit(
            f"against_{name}",
            figure=statistics.median(ratios),
            unit="times our processor time of a point",
            target=target,
            packages=PACKAGES,
            microseconds={
                each: round(statistics.median(costs[each]), 2) for each in ("trainyard", name)
            },
            ratios=[round(ratio, 1) for ratio in ratios],
            requests=requests,
            values_per_request=values,
            version=versions[name],
        )
    return reached


def _batches(requests: int, steps: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the lines of metrics of each request."""
    lines = metric_lines(0)
    for _ in range(requests):
        yield [next(lines) for _ in range(steps)]


def _mlflow_body(run_id: str, batch: Sequence[Mapping[str, Any]]) -> bytes:
    metrics = [
        {"key": key, "value": value, "timestamp": int(line["time"] * 1000), "step": line["step"]}
        for line in batch
        for key, value in line["values"].items()
    ]
    return json.dumps({"run_id": run_id, "metrics": metrics}).encode()


def _trackio_body(batch: Sequence[Mapping[str, Any]]) -> bytes:
    logs = [
        {"project": "benchmark", "run": "run", "metrics": line["values"], "step": line["step"]}
        for line in batch
    ]
    return json.dumps({"args": [], "kwargs": {"logs": logs, "hf_token": None}}).encode()


def _wait_for(tracker: Tracker, points: int) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while (stored := tracker.stored()) < points:
        if time.monotonic() > deadline:
            raise RuntimeError(f"sent {points} points, but {stored} are stored")
        time.sleep(0.2)


def _count(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        (number,) = connection.execute("SELECT count(*) FROM metrics").fetchone()
        return int(number)


@contextmanager
def _running(
    command: Sequence[str], folder: Path, *, port: int, environment: Mapping[str, str]
) -> Iterator[Process]:
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment, stdout=output, stderr=output
        )
    url = f"http://{HOST}:{port}"
    try:
        wait_until_it_answers(f"{url}/version", process, log)
        yield Process(url, process.pid)
    finally:
        process.terminate()
        process.wait()


def _versions(python: str) -> dict[str, str]:
    """Return the version of each other server, from its Python."""
    program = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    asked = (python, "-c", program, *TARGETS)
    found = subprocess.run(asked, check=True, capture_output=True, text=True)
    return dict(zip(TARGETS, found.stdout.split(), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure with requests of each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", nargs="?", help="interpreter that has mlflow and trackio")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--values", type=int, nargs="+", default=[1000, 10], help="of a request")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(arguments)
    if given.python is None:
        print("not measured: no interpreter with mlflow and trackio was given", file=sys.stderr)
        return 0
    python = str(Path(given.python).absolute())  # a resolved link would lose the packages
    sizes = [
        measure(python, requests=given.requests, values=values, rounds=given.rounds)
        for values in given.values
    ]
    return 0 if all(sizes) else 1


if __name__ == "__main__":
    sys.exit(main())
