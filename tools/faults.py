"""Plants faults, and counts the faults that the tests of continuous integration find.

`make test-faults` plants each fault of `tests/gate/faults.toml` in a clone of the last commit. At
first the fault is the change under test. If no test finds it, four landings without other changes
follow. Tests that import the faulty module run first, and the first failure ends a run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.gate.reach import is_reached
from tests.gate.turns import FILE, TURNS, Turn

ROOT = Path(__file__).resolve().parent.parent
FAULTS = "tests/gate/faults.toml"
BUILT = ("web/dist", "web/node_modules")
"""Folders that git ignores but tests need."""
IDENTITY = (
    "-c",
    "user.name=faults",
    "-c",
    "user.email=faults@localhost",
    "-c",
    "commit.gpgsign=no",
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """A fault to plant: a line of a module, and its faulty replacement."""

    module: str
    line: str
    instead: str

    def plant(self, root: Path) -> None:
        """Replace the line in a checkout.

        Raises:
            ValueError: the module does not have the line exactly once.
        """
        path = root / self.module
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.line)) != 1:
            raise ValueError(f"{self.module}: {self.line!r} stands there {count} times, not once")
        path.write_text(text.replace(self.line, self.instead), encoding="utf-8")


@dataclass(frozen=True)
class Found:
    """Result of one landing: the test that found the fault, or None."""

    module: str
    landing: str
    """`change` for the landing of the fault itself, or `turn 1` to `turn 4` for a later landing."""
    test: str | None
    seconds: float


def read_faults(root: Path) -> list[Fault]:
    """Return the faults of a checkout."""
    listed = tomllib.loads((root / FAULTS).read_text(encoding="utf-8"))["fault"]
    return [Fault(**each) for each in listed]


def try_fault(fault: Fault, clone: Path) -> Iterator[Found]:
    """Plant a fault in a clone; yield the result of each landing until a test finds the fault."""
    start = _git(clone, "rev-parse", "HEAD")
    fault.plant(clone)
    _commit(clone, Turn(0, start))
    yield _search(fault, clone, start, landing="change")
    landed = _git(clone, "rev-parse", "HEAD")
    for turn in range(TURNS):
        _commit(clone, Turn(turn, landed))
        found = _search(fault, clone, start, landing=f"turn {turn + 1}")
        yield found
        if found.test is not None:
            break
    _git(clone, "reset", "--quiet", "--hard", start)


def _commit(clone: Path, turn: Turn) -> None:
    (clone / FILE).write_text(json.dumps(asdict(turn)))
    _git(clone, *IDENTITY, "commit", "--quiet", "--all", "--message", "a fault")


def _search(fault: Fault, clone: Path, start: str, *, landing: str) -> Found:
    """Run the selected tests up to the first failure; check that it passes without the fault."""
    started = time.monotonic()
    files = sorted((clone / "tests").rglob("test_*.py"))
    near = [str(path) for path in files if is_reached(clone, {fault.module}, path)]
    rest = [f"--ignore={path}" for path in near]
    # test_faults fails with any planted fault, because it searches for the original line.
    selected = ("--turn", "-m", "not slow", "--ignore=tests/tools/test_faults.py")
    test = None
    for chosen in (near, rest) if near else (rest,):
        test = _first_failure(clone, "-n2", "--dist=loadfile", *selected, *chosen)
        if test is not None:
            break
    seconds = round(time.monotonic() - started, 1)
    if test is not None:
        faulty = _git(clone, "rev-parse", "HEAD")
        _git(clone, "reset", "--quiet", "--hard", start)
        if _first_failure(clone, test) is not None:
            raise RuntimeError(f"{test} fails without a fault too")
        _git(clone, "reset", "--quiet", "--hard", faulty)
    return Found(fault.module, landing, test, seconds)


def _first_failure(clone: Path, *words: str) -> str | None:
    """Return the first failing test of a pytest run."""
    paths = os.pathsep.join((str(clone), str(clone / "library")))
    ran = subprocess.run(
        (sys.executable, "-m", "pytest", "--exitfirst", "-p", "no:cacheprovider", "-q", *words),
        cwd=clone,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    if failed := _FAILED.search(ran.stdout):
        return failed[1]
    if ran.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"pytest ended with {ran.returncode}: {ran.stdout[-2000:]}")
    return None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(("git", *words), cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a JSON line for each landing; return 1 if a fault is found at no landing."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__)
    parser.add_argument("modules", nargs="*", help="those to plant faults in; all when none")
    chosen = parser.parse_args(arguments).modules
    known = read_faults(ROOT)
    if unknown := set(chosen) - {fault.module for fault in known}:
        parser.error(f"{FAULTS} has no fault of {', '.join(sorted(unknown))}")
    faults = [fault for fault in known if not chosen or fault.module in chosen]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="trainyard-faults-") as folder:
        Path(folder).chmod(0o755)  # tests run as other users, who read the code
        clone = Path(folder) / "clone"
        _git(ROOT, "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone))
        for built in BUILT:
            (clone / built).symlink_to(ROOT / built)
        for fault in faults:
            tries = []
            for found in try_fault(fault, clone):
                tries.append(found)
                print(json.dumps(asdict(found)), flush=True)
            missed += all(found.test is None for found in tries)
    print(json.dumps({"faults": len(faults), "missed": missed}))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
