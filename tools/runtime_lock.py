"""Generates the lock of releases: the pins of `constraints.txt` that an installation can need."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
OURS = {"trainyard-library", "trainyard-programs"}
EXTRA = re.compile(r"extra == \"([^\"]+)\"")
TOOLS = ("test", "dev")
"""Extras of the checkout; no released program imports what they bring."""
HEAD = """\
# The exact versions with which a release was tested: constraints of an installation of its wheels.
#   uv tool install --constraints constraints.txt ...    pip install -c constraints.txt ...
# Each line ends with the extras of trainyard-programs that bring the package; `library`: none.
# Without hashes, since builds of torch differ by machine. Written by `python -m tools.generate`.
"""


def runtime_lock_text() -> str:
    """Return the lock.

    Raises:
        PackageNotFoundError: a direct dependency of ours is not installed here.
    """
    programs, library = _project("pyproject.toml"), _project("library/pyproject.toml")
    needs = {"library": [*library["dependencies"], *programs["dependencies"]]}
    optional = programs["optional-dependencies"]
    needs |= {extra: lines for extra, lines in optional.items() if extra not in TOOLS}
    users: dict[str, list[str]] = {}
    for extra, lines in needs.items():
        for name in _closure(lines, optional):
            users.setdefault(name, []).append(extra)
    rows = [f"{line}  # {' '.join(users[name])}\n" for name, line in _pins() if name in users]
    return HEAD + "".join(rows)


def _closure(lines: Iterable[str], extras_of_ours: dict[str, list[str]]) -> set[str]:
    """Return the names of direct and indirect dependencies, on every Python and platform."""
    waiting = [Requirement(line) for line in lines]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            if name in OURS:
                waiting += map(Requirement, extras_of_ours.get(extra, []))
            else:
                waiting += _dependencies(name, extra)
    return {name for name, _ in seen} - OURS


def _dependencies(name: str, extra: str) -> Iterator[Requirement]:
    """Yield what a package needs without an extra, or for an extra alone."""
    try:
        lines = requires(name) or []
    except PackageNotFoundError:  # for another Python or platform
        return
    for line in lines:
        found = Requirement(line)
        if _extra(found.marker) == extra:
            yield found


def _extra(marker: Marker | None) -> str:
    """Return the extra that a marker names; empty if it names none."""
    named = EXTRA.search(str(marker or ""))
    return named[1] if named else ""


def _pins() -> list[tuple[str, str]]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    return [(canonicalize_name(Requirement(line).name), line) for line in pins]


def _project(path: str) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / path).read_text(encoding="utf-8"))["project"]
    return project
