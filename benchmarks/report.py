"""Output of every benchmark: one JSON object per figure, with the machine and the versions."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def emit(
    benchmark: str,
    *,
    figure: float,
    unit: str,
    target: float | None = None,
    at_least: bool = True,
    packages: Iterable[str],
    **details: object,
) -> bool:
    """Print one figure as a line of JSON; return whether it reaches its target.

    Args:
        benchmark: name of the measurement.
        figure: the number.
        unit: its unit.
        target: its target; absent for a figure that only informs.
        at_least: whether the figure must be `target` or more; otherwise `target` or less.
        packages: distributions for which the line names the versions.
        details: further fields of the line.
    """
    passed = target is None or (figure >= target if at_least else figure <= target)
    line = {
        "benchmark": benchmark,
        "figure": float(f"{figure:.4g}"),
        "unit": unit,
        "target": target,
        "passed": passed,
        **details,
        "machine": machine(),
        "versions": versions(packages),
    }
    print(json.dumps(line), flush=True)
    return passed


Line = dict[str, Any]


def run_and_relay(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[bool, list[Line]]:
    """Run a program that prints figures; print its lines, return whether all reached targets.

    The program exits with 0 if a figure misses its target: torchrun would report a crash otherwise.
    """
    ended = subprocess.run(
        list(command), env=environment, check=False, stdout=subprocess.PIPE, text=True
    )
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    for line in lines:
        print(json.dumps(line), flush=True)
    reached = ended.returncode == 0 and bool(lines) and all(line["passed"] for line in lines)
    return reached, lines


def machine() -> dict[str, object]:
    """Return what the figures depend on: cores, memory, and the load of the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "memory_gib": round(memory / 2**30, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of some distributions."""
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version()} | found


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]
