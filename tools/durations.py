"""Sums the measured times of one run of the tests by folder and by cause, for `docs/testing.md`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gate.durations import FOLDER, duration_of, stored_runs
from tests.integration import DEEP, INTEGRATION

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/testing.md"
MAX_SLOWEST = 50
LEAST_SECONDS = 10.0
"""Causes with a shorter time share one row of the table."""

HEAD = """# Where the time of the tests goes

Written by `python -m tools.durations` from the measurements of a test run in `{folder}`. Seconds
are wall time in the process of a test, and several processes share the cores. Processor seconds are
those of the process, of its finished children, and of its ranks.
"""

Line = Mapping[str, Any]


@dataclass
class Sum:
    """Number and times of the tests in one folder or of one cause."""

    tests: int = 0
    seconds: float = 0.0
    cpu: float = 0.0


def page(lines: Sequence[Line]) -> str:
    """Return the page for one run, given the lines of its file."""
    run = next(line for line in lines if "run" in line)
    tests = [line for line in lines if "test" in line]
    collections = [line for line in lines if "collection" in line]
    return "\n".join(
        [
            HEAD.format(folder=FOLDER),
            *_run(run, tests, collections),
            "\n## By folder\n",
            *_table("folder", _by(tests, _folder)),
            "\n## By cause\n",
            *_causes(tests, collections),
            f"\n## The {MAX_SLOWEST} slowest tests\n",
            *_slowest(tests),
            "",
        ]
    )


def _run(run: Line, tests: Sequence[Line], collections: Sequence[Line]) -> Iterator[str]:
    outcomes = Counter(test["outcome"] for test in tests)
    before, after = (load[0] for load in (run["load_before"], run["load_after"]))
    yield (
        f"`pytest {' '.join(run['run'])}`: {len(tests):,} tests ({outcomes['failed']} failed, "
        f"{outcomes['skipped']} skipped) in {run['seconds'] / 60:.1f} minutes."
    )
    yield (
        f"{run['cores']} cores ({run['machine']}; Python {run['python']}) were busy for "
        f"{run['busy_cpu'] / 60:.1f} minutes of processor time; load {before:.1f} before, "
        f"{after:.1f} after."
    )
    collected = sum(line["seconds"] for line in collections)
    yield f"{len(collections)} processes collected for {collected:.0f} s in all."


def _table(name: str, sums: Mapping[str, Sum]) -> Iterator[str]:
    yield f"| {name} | tests | seconds | processor seconds |"
    yield "|---|---:|---:|---:|"
    for key, each in sorted(sums.items(), key=lambda pair: -pair[1].seconds):
        yield f"| {key} | {each.tests:,} | {each.seconds:,.0f} | {each.cpu:,.0f} |"


def _by(tests: Iterable[Line], key: Callable[[Line], str]) -> dict[str, Sum]:
    sums: dict[str, Sum] = defaultdict(Sum)
    for test in tests:
        each = sums[key(test)]
        each.tests += 1
        each.seconds += duration_of(test)
        each.cpu += test["cpu"] + test["ranks_cpu"]
    return sums


def _folder(test: Line) -> str:
    """Return the first two folders below `tests`."""
    return "/".join(test["test"].split("::")[0].split("/")[:-1][:3])


def _causes(tests: Sequence[Line], collections: Sequence[Line]) -> Iterator[str]:
    """Yield a table of the seconds by cause: a fixture, a span, or a kind of test."""
    sums: dict[str, float] = defaultdict(float)
    sums["collection"] = sum(line["seconds"] for line in collections)
    for test in tests:
        rest = duration_of(test)
        for kind in ("fixtures", "spans"):
            for name, spent in test[kind].items():
                sums[f"fixture `{name}`" if kind == "fixtures" else f"span `{name}`"] += spent
                rest -= spent
        sums[_kind(test)] += rest
    yield "| cause | seconds |"
    yield "|---|---:|"
    small = sum(spent for spent in sums.values() if spent < LEAST_SECONDS)
    for name, spent in sorted(sums.items(), key=lambda pair: -pair[1]):
        if spent >= LEAST_SECONDS:
            yield f"| {name} | {spent:,.0f} |"
    yield f"| causes of less than {LEAST_SECONDS:.0f} s each | {small:,.0f} |"


def _kind(test: Line) -> str:
    path = test["test"].split("::")[0]
    places = {**INTEGRATION, **DEEP}
    for place, reason in sorted(places.items(), key=lambda pair: -len(pair[0])):
        if path == place or path.startswith(f"{place}/"):
            return f"`{place}`: {reason}"
    database = re.search(r"[\[-](postgresql|sqlite)\b", test["test"])
    folder = "/".join(path.split("/")[:2])
    return f"tests on {database[1]} in `{folder}`" if database else f"other tests of `{folder}`"


def _slowest(tests: Sequence[Line]) -> Iterator[str]:
    yield "| test | seconds | processor seconds |"
    yield "|---|---:|---:|"
    for test in sorted(tests, key=duration_of, reverse=True)[:MAX_SLOWEST]:
        name = test["test"].replace("|", "\\|")
        yield f"| `{name}` | {duration_of(test):.1f} | {test['cpu'] + test['ranks_cpu']:.1f} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or print it."""
    parser = argparse.ArgumentParser(prog="python -m tools.durations", description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the page, and write nothing")
    parser.add_argument("file", type=Path, nargs="?", help="a run; the newest one when none")
    options = parser.parse_args(arguments)
    files = [options.file] if options.file else stored_runs(ROOT)
    if not files:
        sys.stderr.write(f"{FOLDER} has no run: run the tests first\n")
        return 1
    text = page([json.loads(line) for line in files[-1].read_text().splitlines()])
    if options.print:
        sys.stdout.write(text)
    else:
        (ROOT / PAGE).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
