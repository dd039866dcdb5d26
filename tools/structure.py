"""Counts the parts of the server, the arrows between them, and their rooms, files and lines.

`python -m tools.structure` prints one JSON document. An arrow goes from a part to a part that it
imports. An arrow points up if the imported part is higher in `PARTS`. A room is a package inside a
part.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from itertools import combinations
from pathlib import Path
from typing import TypedDict

import grimp

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("app", "scheduler", "telemetry", "jobs", "cluster", "api", "core")
"""Parts of the server, from top to bottom."""

Arrows = Mapping[str, Collection[str]]
"""Packages that each package imports; a package is a part or a room."""


class Structure(TypedDict):
    """The counts; some fields have a value per part, others list pairs of parts."""

    parts: int
    pairs_with_an_arrow: int
    pairs: int
    pairs_without: list[list[str]]
    arrows_up: list[list[str]]
    circles_of_rooms: list[list[str]]
    rooms: dict[str, list[str]]
    files: dict[str, int]
    lines: dict[str, int]


def arrows_between(modules: Mapping[str, Collection[str]], *, depth: int) -> dict[str, set[str]]:
    """Return the arrows between packages.

    Args:
        modules: imports of each module.
        depth: number of leading names of a module that form its package: 2 for parts, 3 for rooms.
    """
    arrows: dict[str, set[str]] = {}
    for module, imported in modules.items():
        package = ".".join(module.split(".")[:depth])
        found = {".".join(each.split(".")[:depth]) for each in imported} - {package}
        arrows.setdefault(package, set()).update(found)
    return arrows


def circles_of(arrows: Arrows) -> list[list[str]]:
    """Return the groups of packages in which each package imports all others, directly or not."""
    reached = {package: _reached(arrows, package) for package in arrows}
    groups = {
        tuple(sorted(other for other in found if package in reached.get(other, ())))
        for package, found in reached.items()
        if package in found
    }
    return sorted(map(list, groups))


def _reached(arrows: Arrows, package: str) -> set[str]:
    found, waiting = set[str](), [*arrows.get(package, ())]
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting += arrows.get(other, ())
    return found


def structure() -> Structure:
    """Return the counts of the server with its present imports."""
    graph = grimp.build_graph("server", cache_dir=None)
    modules = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    parts = arrows_between(modules, depth=2)
    pairs = {
        (above, below)
        for above, below in combinations(PARTS, 2)
        if f"server.{below}" in parts.get(f"server.{above}", ())
    }
    up = {
        (below, above)
        for above, below in combinations(PARTS, 2)
        if f"server.{above}" in parts.get(f"server.{below}", ())
    }
    files = {part: sorted((ROOT / "server" / part).rglob("*.py")) for part in PARTS}
    return {
        "parts": len(PARTS),
        "pairs_with_an_arrow": len(pairs),
        "pairs": len(PARTS) * (len(PARTS) - 1) // 2,
        "pairs_without": sorted(map(list, {*combinations(PARTS, 2)} - pairs)),
        "arrows_up": sorted(map(list, up)),
        "circles_of_rooms": circles_of(arrows_between(modules, depth=3)),
        "rooms": {part: _rooms(part) for part in PARTS},
        "files": {part: len(found) for part, found in files.items()},
        "lines": {part: sum(map(_lines, found)) for part, found in files.items()},
    }


def _rooms(part: str) -> list[str]:
    folder = ROOT / "server" / part
    return sorted(each.parent.name for each in folder.glob("*/__init__.py"))


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def main() -> int:
    """Print the counts; return 1 if an arrow points up or rooms form a circle."""
    counted = structure()
    sys.stdout.write(json.dumps(counted, indent=1) + "\n")
    return 1 if counted["arrows_up"] or counted["circles_of_rooms"] else 0


if __name__ == "__main__":
    sys.exit(main())
