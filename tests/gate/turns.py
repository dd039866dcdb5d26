"""Chooses the deep tests of continuous integration: a quarter, and those that the change reaches.

A test with the mark `deep` tests one part of the product on every layout or database, or with whole
programs (`DEEP` in tests/integration.py). A landing runs the deep tests of its turn, so that four
landings run all of them, and those that its change reaches. `make test-all` runs every test.

`tests/gate/turn.json` holds the turn, and the commit that landed last, from which the change is
counted. `make turn BASE=COMMIT` writes it, whenever and as often as one likes before a landing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.gate.reach import changed_files, commits_since, file_at, full_id, is_reached

ROOT = Path(__file__).resolve().parents[2]
OPTION = "--turn"
FILE = "tests/gate/turn.json"
TURNS = 4
MAX_COMMITS = 150
"""Commits of a change; after more of them the turn of this landing was probably forgotten."""
RUNS_ALL = (
    *("constraints.txt", "pyproject.toml", "web/package-lock.json", "Makefile", ".ci/"),
    *("migrations/", "server/core/database/", "server/core/isolation.py"),
    *("tests/conftest.py", "tests/forkserver.py", "tests/gate/", "tests/integration.py"),
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


def read_turn(root: Path) -> Turn:
    """Return the turn of a checkout.

    Raises:
        pytest.UsageError: The file names a turn that no test has, or a base that moves.
    """
    turn = Turn(**json.loads((root / FILE).read_text()))
    if turn.turn not in range(TURNS) or not re.fullmatch("[0-9a-f]{40}", str(turn.base)):
        raise pytest.UsageError(
            f"{FILE}: turn={turn.turn!r} is one of 0 to {TURNS - 1}, and base={turn.base!r} the "
            "40 hexadecimal digits of a commit; `make turn` writes both"
        )
    return turn


def reason_to_run_all(changed: Set[str] | None, commits: int = 0) -> str | None:
    """Return why every deep test runs after a change, if it does; None is an unknown change."""
    if changed is None:
        return "the base is unknown or no ancestor of this commit"
    if commits > MAX_COMMITS:
        return f"{commits} commits have followed: `make turn` names the base anew"
    names = sorted(name for name in changed if name != FILE)
    found = next((name for name in names if name.startswith(RUNS_ALL)), None)
    return found and f"{found} has changed"


def reason_of_order(root: Path, turn: Turn) -> str | None:
    """Return why every deep test runs although its turn is named: it was another one's."""
    landed = file_at(root, turn.base, FILE)
    if landed is None or (json.loads(landed)["turn"] + 1) % TURNS == turn.turn:
        return None
    return f"turn {turn.turn + 1} does not follow that of the base"


class ChosenTests:
    """Leaves out the deep tests of other turns that the change does not reach."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._turn = read_turn(root)
        changed = changed_files(root, self._turn.base)
        self._changed = changed or frozenset()
        self._runs_all = reason_to_run_all(
            changed, commits_since(root, self._turn.base)
        ) or reason_of_order(root, self._turn)
        self._reached: dict[Path, bool] = {}
        self._counts: Counter[str] = Counter()

    def pytest_report_header(self) -> str:
        """Print the turn, and from where the change is counted."""
        change = f"{len(self._changed)} files changed since {self._turn.base[:12]}"
        chosen = f"every deep test runs: {self._runs_all}" if self._runs_all else change
        return f"turn {self._turn.turn + 1} of {TURNS}, {chosen}"

    @pytest.hookimpl(trylast=True)  # after tests are left out by their marks
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
        if self._runs_all:
            return "deep, all run"
        if self._turn.has(item.nodeid):
            return "deep, of this turn"
        if item.path not in self._reached:
            self._reached[item.path] = is_reached(self._root, self._changed, item.path)
        return "deep, reached by the change" if self._reached[item.path] else LEFT


def register(config: pytest.Config) -> None:
    """Leave deep tests to their turns, where the run is asked to.

    Raises:
        pytest.UsageError: Another file than pyproject.toml configures pytest, and could leave
            tests out without a run of every deep test.
    """
    if config.getoption(OPTION):
        if config.inipath not in (None, config.rootpath / "pyproject.toml"):
            raise pytest.UsageError(f"{config.inipath} configures pytest, not pyproject.toml")
        config.pluginmanager.register(ChosenTests(config.rootpath), "trainyard-turns")


def advance(root: Path, base: str) -> Turn:
    """Store the turn that follows the one at `base`, the commit that landed last.

    Raises:
        ValueError: `base` is unknown, or no ancestor of the present commit.
    """
    if changed_files(root, base) is None:
        raise ValueError(f"{base!r} is unknown or no ancestor of this commit")
    landed = file_at(root, base, FILE)
    number = (json.loads(landed)["turn"] + 1) % TURNS if landed else 0
    turn = Turn(number, full_id(root, base))
    (root / FILE).write_text(json.dumps(asdict(turn), indent=2) + "\n")
    return turn


def main(arguments: Sequence[str] | None = None) -> int:
    """Advance the turn of this checkout."""
    parser = argparse.ArgumentParser(prog="python -m tests.gate.turns", description=main.__doc__)
    parser.add_argument("base", help="the commit that landed last")
    try:
        turn = advance(ROOT, parser.parse_args(arguments).base)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{FILE}: turn {turn.turn + 1} of {TURNS}, base {turn.base[:12]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
