"""The tables of docs/chaos.md: each fault, what was predicted, and what was seen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.fault import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "chaos.md"


@dataclass(frozen=True)
class Result:
    """How one case ended."""

    name: str
    passed: bool
    seconds: float
    problem: str = ""
    commit: str = ""
    """Commit of the programs that ran."""
    text: str = ""
    """What happened, for a combination."""
    real: bool = True
    """Whether the ranks were those of the real trainer."""

    @property
    def seed(self) -> str:
        """Seed of a combination."""
        return self.name.split("-")[-2]


Results = Mapping[tuple[str, bool], Result]
"""The newest result of each name, with the real trainer and with stand-ins."""


def read(results: Path) -> Results:
    """Return the results that are kept."""
    if not results.exists():
        return {}
    kept = [Result(**json.loads(line)) for line in results.read_text().splitlines()]
    return {(result.name, result.real): result for result in kept}


def write_page(results: Results) -> None:
    """Write both tables into the page."""
    _replace("results", _faults(results))
    _replace("combinations", _combinations([r for r in results.values() if r.name not in FAULTS]))


def _faults(results: Results) -> Iterator[str]:
    yield "| fault | what happens | attempts | retries used | real trainer | stand-ins |"
    yield "|---|---|---|---|---|---|"
    for name, fault in FAULTS.items():
        predicted = fault.predicted
        cells = (f"`{name}`", fault.text, predicted.attempts[0], predicted.retries_used)
        seen = (_seen(results.get((name, real))) for real in (True, False))
        yield f"| {' | '.join(map(str, (*cells, *seen)))} |"


def _seen(result: Result | None) -> str:
    if result is None:
        return "not run"
    return f"{'as predicted' if result.passed else '**another end**'} ({result.commit})"


def _combinations(drawn: Sequence[Result]) -> Iterator[str]:
    """Yield the table of the random combinations, and each that ended otherwise."""
    yield "| seed | ranks | run | as predicted | commits |"
    yield "|---|---|---|---|---|"
    for real, seed in sorted({(result.real, result.seed) for result in drawn}):
        group = [r for r in drawn if (r.real, r.seed) == (real, seed)]
        commits = ", ".join(sorted({result.commit for result in group}))
        passed = sum(result.passed for result in group)
        ranks = "real trainer" if real else "stand-ins"
        yield f"| {seed} | {ranks} | {len(group)} | {passed} | {commits} |"
    for result in drawn:
        if not result.passed:
            yield f"\n`{result.name}` ended otherwise ({result.commit}): {result.text}"


def _replace(name: str, lines: Iterable[str]) -> None:
    """Replace what stands between two marks."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    head, _, rest = PAGE.read_text().partition(begin)
    tail = rest.partition(end)[2]
    PAGE.write_text("\n".join((head + begin, *lines, end + tail)))
