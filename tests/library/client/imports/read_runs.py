"""Reads runs like an import, in a form for comparison."""

from __future__ import annotations

from pathlib import Path

from trainyard.client.past_runs.past_run import PastRun, ordered
from trainyard.client.past_runs.runs import find_runs
from trainyard.protocol.past_runs.views import ImportTool

Point = tuple[int, float]


def runs(tool: ImportTool, path: Path) -> list[PastRun]:
    """Return the runs of a tool, ordered."""
    found = []
    for run in find_runs(tool, path):
        assert isinstance(run, PastRun), run
        ordered(run)
        found.append(run)
    return found


def points(run: PastRun, name: str) -> list[Point]:
    """Return step and value of each point of a series."""
    columns = run.series[name]
    return list(zip(columns.steps, columns.values, strict=True))
