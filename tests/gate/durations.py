"""Measures each test, fixture and collection, and stores them for `python -m tools.durations`.

A run has a file in `.durations`: a line is a test, a collection, or the run itself. Seconds are
wall time; those of `cpu` are processor time of the process of pytest, of its finished children, and
of its ranks.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

FOLDER = ".durations"
MAX_RUNS = 20
"""Files that are kept."""
MIN_TESTS = 500
"""Tests of the smallest run that is stored."""
MEASURED = "durations"
"""The property of a report that has what its phase measured."""


class Spent:
    """Seconds that the current phase of a test has spent, by what spent them."""

    def __init__(self) -> None:
        self.fixtures: dict[str, float] = defaultdict(float)
        self.spans: dict[str, float] = defaultdict(float)
        self.ranks_cpu = 0.0
        self.inner: list[float] = []
        """For each fixture in the making: seconds of what is measured by itself within it."""

    def clear(self) -> None:
        """Forget a phase that has ended."""
        self.fixtures.clear()
        self.spans.clear()
        self.ranks_cpu = 0.0

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to a span, such as the training of ranks."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.count(self.spans, name, time.monotonic() - started)

    def count(self, sums: dict[str, float], name: str, seconds: float) -> None:
        """Add seconds to a sum, and leave them out of that of the fixture around them."""
        sums[name] += seconds
        if self.inner:
            self.inner[-1] += seconds


SPENT = Spent()


def processor_seconds() -> float:
    """Return the processor time of this process and of the children that it waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


class Measure:
    """Measures in the process that runs tests; reports carry the figures to the controller."""

    def __init__(self) -> None:
        self._cpu = 0.0
        self.collection: dict[str, float] = {}
        """What the collection of this process took."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Measure the collection of this process."""
        started, cpu = time.monotonic(), processor_seconds()
        result = yield
        self._cpu = processor_seconds()
        self.collection = {"seconds": time.monotonic() - started, "cpu": self._cpu - cpu}
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output[MEASURED] = self.collection
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """Measure a fixture without those that it asked for while it was made."""
        SPENT.inner.append(0.0)
        started = time.monotonic()
        try:
            return (yield)
        finally:
            inner = SPENT.inner.pop()
            SPENT.count(SPENT.fixtures, fixturedef.argname, time.monotonic() - started - inner)
            if SPENT.inner:
                SPENT.inner[-1] += inner

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach what the phase that ends has spent."""
        report = yield
        cpu = processor_seconds()
        report.user_properties.append(
            (
                MEASURED,
                {
                    "cpu": cpu - self._cpu,
                    "ranks_cpu": SPENT.ranks_cpu,
                    "fixtures": dict(SPENT.fixtures),
                    "spans": dict(SPENT.spans),
                },
            )
        )
        self._cpu = cpu
        SPENT.clear()
        return report


class Store:
    """Writes what the processes of a run measured, in the process that distributes the tests."""

    def __init__(self, config: pytest.Config, own: Measure) -> None:
        self._own = own
        """Has the collection of this process, where no others run the tests."""
        self._folder = config.rootpath / FOLDER
        self._arguments = list(config.invocation_params.args)
        self._started = time.monotonic()
        self._busy = _busy_seconds()
        self._load = os.getloadavg()
        self._lines: dict[str, dict[str, Any]] = {}
        self._collections: list[dict[str, Any]] = []
        self._uncollected: set[str] = set()
        self._died: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._uncollected.add(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        line: dict[str, Any] = self._lines.setdefault(
            report.nodeid,
            {
                "test": report.nodeid,
                "process": getattr(report, "worker_id", "main"),
                "at": round(time.monotonic() - self._started, 3),
                "outcome": "passed",
                "cpu": 0.0,
                "ranks_cpu": 0.0,
                "fixtures": {},
                "spans": {},
            },
        )
        if report.outcome != "passed":
            line["outcome"] = report.outcome
        line[report.when] = round(report.duration, 4)
        properties: list[tuple[str, Any]] = report.user_properties
        for values in (value for name, value in properties if name == MEASURED):
            line["cpu"] = round(line["cpu"] + values["cpu"], 4)
            line["ranks_cpu"] = round(line["ranks_cpu"] + values["ranks_cpu"], 4)
            for kind in ("fixtures", "spans"):
                for name, seconds in values[kind].items():
                    line[kind][name] = round(line[kind].get(name, 0.0) + seconds, 4)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        if error:
            self._died.append(node.gateway.id)
        measured = getattr(node, "workeroutput", {}).get(MEASURED)
        if measured:
            self._collections.append({"collection": node.gateway.id, **measured})

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Store the run, unless it is one of a few tests."""
        if len(self._lines) < MIN_TESTS:
            return
        collections = self._collections or [{"collection": "main", **self._own.collection}]
        run = {
            "run": self._arguments,
            "seconds": round(time.monotonic() - self._started, 1),
            "busy_cpu": round(_busy_seconds() - self._busy, 1),
            "load_before": self._load,
            "load_after": os.getloadavg(),
            "cores": os.cpu_count(),
            "machine": _processor(),
            "python": platform.python_version(),
            "exit": int(exitstatus),
            "uncollected": sorted(self._uncollected),
            "died": sorted(self._died),
        }
        lines = [run, *collections, *self._lines.values()]
        self._folder.mkdir(exist_ok=True)
        name = f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}-{len(self._lines)}-tests.jsonl"
        (self._folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        for old in stored_runs(self._folder.parent)[:-MAX_RUNS]:
            old.unlink(missing_ok=True)


def stored_runs(root: Path) -> list[Path]:
    """Return the files of the runs of a checkout, the oldest first."""
    return sorted((root / FOLDER).glob("*.jsonl"))


def duration_of(line: Mapping[str, Any]) -> float:
    """Return the wall time of a test with its fixtures, from its line."""
    return float(sum(line.get(phase, 0.0) for phase in ("setup", "call", "teardown")))


def _busy_seconds() -> float:
    """Return the seconds that all processors were busy since the machine started."""
    values = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, _steal = values
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _processor() -> str:
    """Return the model of the processor, with the family and model number that tell it apart."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    fields = dict(line.partition(":")[::2] for line in lines)
    words = {name.strip(): value.strip() for name, value in fields.items()}
    return (
        f"{words.get('model name', platform.machine())}, family {words.get('cpu family', '?')}, "
        f"model {words.get('model', '?')}"
    )


def register(config: pytest.Config) -> None:
    """Measure the tests of this run, and store the figures where they are distributed."""
    measure = Measure()
    config.pluginmanager.register(measure, "trainyard-measure")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Store(config, measure), "trainyard-store")
