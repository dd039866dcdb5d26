"""The tables of docs/chaos.md: each fault, what was predicted, and what was seen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.fault import FAULTS, Fault

PAGE = Path(__file__).parents[2] / "docs" / "chaos.md"


@dataclass(frozen=True)
class Result:
    """How one case ended."""

    name: str
    passed: bool
    seconds: float
    problem: str = ""
    commit: str = ""
    """Commit at which it ran."""
    text: str = ""
    """What happened, for a combination."""
    real: bool = True
    """Whether the ranks were those of the real trainer."""


def read(results: Path) -> dict[str, Result]:
    """Return the newest result of each name."""
    if not results.exists():
        return {}
    lines = results.read_text().splitlines()
    return {result.name: result for result in (Result(**json.loads(line)) for line in lines)}


def write_page(results: Mapping[str, Result]) -> None:
    """Write both tables into the page."""
    rows = [_row(fault, results.get(name)) for name, fault in FAULTS.items()]
    table = ["| fault | what happens | attempts | retries used | seen |", "|---|---|---|---|---|"]
    _replace("results", [*table, *rows])
    drawn = [result for name, result in results.items() if name not in FAULTS]
    _replace("combinations", list(_combinations(drawn)))


def _row(fault: Fault, result: Result | None) -> str:
    seen = "not run"
    if result is not None:
        ended = "as predicted" if result.passed else "**another end**"
        seen = f"{ended} ({result.commit})" if result.commit else ended
    predicted = fault.predicted
    cells = (f"`{fault.name}`", fault.text, predicted.attempts[0], predicted.retries_used, seen)
    return f"| {' | '.join(map(str, cells))} |"


def _combinations(drawn: Iterable[Result]) -> Iterable[str]:
    """Return the table of the random combinations, and each that failed."""
    drawn = list(drawn)
    yield "| seed | ranks | run | as predicted | commits |"
    yield "|---|---|---|---|---|"
    groups = Counter((result.name.rpartition("-")[0], result.real) for result in drawn)
    for (name, real), run in sorted(groups.items()):
        group = [r for r in drawn if r.name.rpartition("-")[0] == name]
        commits = ", ".join(sorted({result.commit for result in group}))
        ranks = "real" if real else "stand-in"
        passed = sum(result.passed for result in group)
        yield f"| {name.rpartition('-')[2]} | {ranks} | {run} | {passed} | {commits} |"
    for result in drawn:
        if not result.passed:
            yield f"\n`{result.name}` ended otherwise: {result.text}"


def _replace(name: str, lines: Iterable[str]) -> None:
    """Replace what stands between two marks."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    head, _, rest = PAGE.read_text().partition(begin)
    tail = rest.partition(end)[2]
    PAGE.write_text("\n".join((head + begin, *lines, end + tail)))
