"""Chooses the deep tests of continuous integration: a quarter, and those that the change reaches.

A test with the mark `deep` repeats one that always runs, on another layout or another database, or
tests what no part of the product uses (tests/integration.py). A landing runs the deep tests of its
turn, so that four landings run all of them, and those that its change reaches. `make test-all` runs
every test.

`tests/gate/turn.json` holds the number of the turn, and the commit from which the change counts:
the one that advanced the turn before. `make turn` advances it, once for a landing.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections import Counter
from collections.abc import Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.gate.reach import changed_files, last_commit, reaching

ROOT = Path(__file__).resolve().parents[2]
OPTION = "--turn"
FILE = "tests/gate/turn.json"
TURNS = 4
WHOLE = (
    *("constraints.txt", "web/package-lock.json", "Makefile"),
    *(".ci/", "migrations/", "tests/conftest.py", "tests/integration.py"),
    *("tests/forkserver.py", "tests/gate/"),
)
"""Files and folders: a change of one of them runs every deep test."""
LEFT = "deep, left to the next turns"


@dataclass(frozen=True)
class Turn:
    """A part of the deep tests, and the change of the landing that runs it."""

    turn: int
    base: str
    """The commit from which the change is counted."""

    def has(self, test: str) -> bool:
        """Return whether a test belongs to this turn; its id alone decides."""
        return zlib.crc32(test.encode()) % TURNS == self.turn

    def next(self, base: str) -> Turn:
        """Return the turn of the next landing."""
        return Turn((self.turn + 1) % TURNS, base)


def read_turn(root: Path) -> Turn:
    """Return the turn of a checkout."""
    return Turn(**json.loads((root / FILE).read_text()))


def whole_reason(changed: Set[str] | None) -> str | None:
    """Return why every deep test runs after a change, if it does; None is an unknown change."""
    if changed is None:
        return "the base is no ancestor of this commit"
    names = sorted(name for name in changed if name != FILE)
    found = next((name for name in names if name.startswith(WHOLE)), None)
    return found and f"{found} has changed"


class ChosenTests:
    """Leaves out the deep tests of other turns that the change does not reach."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._turn = read_turn(root)
        changed = changed_files(root, self._turn.base)
        self._changed = changed or frozenset()
        self._whole = whole_reason(changed)
        self._reached: dict[Path, bool] = {}
        self._counts: Counter[str] = Counter()

    def pytest_report_header(self) -> str:
        """Print the turn, and from where the change is counted."""
        every = f"; every deep test runs: {self._whole}" if self._whole else ""
        return (
            f"turn {self._turn.turn} of {TURNS}, {len(self._changed)} files changed since "
            f"{self._turn.base[:12]}{every}"
        )

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave tests out, and count all of them by reason."""
        reasons = [self._reason(item) for item in items]
        self._counts.update(reasons)
        left = [item for item, reason in zip(items, reasons, strict=True) if reason == LEFT]
        items[:] = [item for item, reason in zip(items, reasons, strict=True) if reason != LEFT]
        config.hook.pytest_deselected(items=left)
        if (output := getattr(config, "workeroutput", None)) is not None:
            output[OPTION] = dict(self._counts)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the counts of a process; each of them chooses the same tests."""
        self._counts = Counter(getattr(node, "workeroutput", {}).get(OPTION, self._counts))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print how many tests were chosen, by reason."""
        terminalreporter.section("chosen tests")
        terminalreporter.line(self.pytest_report_header())
        for reason, count in sorted(self._counts.items()):
            terminalreporter.line(f"{count:6,} {reason}")

    def _reason(self, item: pytest.Item) -> str:
        if item.get_closest_marker("deep") is None:
            return "always run"
        if self._whole:
            return "deep, all run"
        if self._turn.has(item.nodeid):
            return "deep, of this turn"
        if item.path not in self._reached:
            self._reached[item.path] = bool(reaching(self._root, self._changed, item.path))
        return "deep, reached by the change" if self._reached[item.path] else LEFT


def register(config: pytest.Config) -> None:
    """Leave deep tests to their turns, where the run is asked to."""
    if config.getoption(OPTION):
        config.pluginmanager.register(ChosenTests(config.rootpath), "trainyard-turns")


def advance(root: Path) -> Turn:
    """Store the next turn, whose change is counted from the commit that stored the present one.

    Raises:
        ValueError: the present turn is not committed, so that this landing has its turn already.
    """
    advanced = last_commit(root, FILE)
    changed = changed_files(root, advanced) if advanced else None
    if advanced is None or changed is None or FILE in changed:
        raise ValueError(f"{FILE} is not committed: the turn of this landing is advanced already")
    turn = read_turn(root).next(advanced)
    (root / FILE).write_text(json.dumps(asdict(turn), indent=2) + "\n")
    return turn


def main() -> int:
    """Advance the turn of this checkout."""
    try:
        turn = advance(ROOT)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{FILE}: turn {turn.turn}, base {turn.base[:12]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
