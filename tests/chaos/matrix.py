"""The table of docs/chaos.md: each fault, what was predicted, and what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.faults import FAULTS, Fault

PAGE = Path(__file__).parents[2] / "docs" / "chaos.md"
BEGIN, END = "<!-- results -->", "<!-- end of results -->"


@dataclass(frozen=True)
class Result:
    """How one case ended."""

    name: str
    passed: bool
    seconds: float
    problem: str = ""


def write_matrix(results: Mapping[str, Result]) -> None:
    """Write the table of all faults into the page."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    tail = rest.partition(END)[2]
    rows = [_row(fault, results.get(name)) for name, fault in FAULTS.items()]
    table = [
        "| fault | what happens | attempts | retries used | seen |",
        "|---|---|---|---|---|",
        *rows,
    ]
    PAGE.write_text(head + BEGIN + "\n" + "\n".join(table) + "\n" + END + tail)


def _row(fault: Fault, result: Result | None) -> str:
    ends = {None: "not run", True: "as predicted", False: "**another end**"}
    seen = ends[result.passed if result is not None else None]
    predicted = fault.predicted
    cells = (f"`{fault.name}`", fault.text, predicted.attempts, predicted.retries_used, seen)
    return f"| {' | '.join(map(str, cells))} |"
