"""The shape of the parts: files of a readable size, and one meaning for a name."""

from __future__ import annotations

import ast
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.integration import DEEP, INTEGRATION, ON_POSTGRESQL

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("library/trainyard", "server", "worker", "trainer", "embedded", "provisioner")
SHORTEST_MEDIAN, LONGEST_MEDIAN = 100, 220
"""Lines of the median file of a part: neither fragments nor swamps."""

NOUN = "the same noun: its commands, its views, its calls, its part of the server"
AXIS = "one axis: its rules in the library, its application in the trainer"
KIND = "what the folder has of this kind: the name is read with the folder's"

# Why a name may stand in several parts: it has one meaning in all of them.
SHARED_CLASSES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "ConflictError",
            "ForbiddenError",
            "InvalidRequestError",
            "NotFoundError",
            "UnauthenticatedError",
        ),
        "one refusal: the server raises it, and the client that receives it",
    ),
    "Settings": "the settings of a program",
}
SHARED_MODULES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("access", "artifacts", "attempts", "checkpoint", "checkpoints", "compare"),
            *(
                "events",
                "goodput",
                "inbox",
                "jobs",
                "launch",
                "manifest",
                "metrics",
                "nodes",
                "operations",
            ),
            *("problems", "projects", "requests", "resume", "run", "stream"),
        ),
        NOUN,
    ),
    **dict.fromkeys(("cp", "tp"), AXIS),
    "rank_probe": "the probe of ranks: its values, its verdict, its measurements in the trainer",
    **dict.fromkeys(
        (
            "api",
            "app",
            "base",
            "data",
            "errors",
            "files",
            "hugging_face",
            "loop",
            "settings",
            "tables",
        ),
        KIND,
    ),
}


@cache
def modules(part: str) -> dict[str, Path]:
    """Each module of a folder by its dotted name."""
    found = {}
    for path in sorted((ROOT / part).rglob("*.py")):
        name = path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("library/")
        found[name.replace("/", ".").removesuffix(".__init__")] = path
    return found


def all_modules(parts: Iterable[str]) -> dict[str, Path]:
    return {name: path for part in parts for name, path in modules(part).items()}


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("part", PARTS)
def test_the_median_file_of_a_part_is_neither_a_fragment_nor_a_swamp(part: str) -> None:
    sizes = [lines_of(p) for p in modules(part).values() if p.name != "__init__.py"]
    assert SHORTEST_MEDIAN <= statistics.median(sizes) <= LONGEST_MEDIAN


def test_no_public_class_has_the_name_of_another_one() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for name, path in all_modules(PARTS).items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(name)
    twice = {name: sorted(places) for name, places in homes.items() if len(places) > 1}
    assert {name: twice[name] for name in twice.keys() - SHARED_CLASSES.keys()} == {}
    assert SHARED_CLASSES.keys() <= twice.keys(), "an exception that nothing needs"


def test_no_module_has_the_name_of_another_one_in_another_part() -> None:
    homes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for part in PARTS:
        for name in modules(part):
            homes[name.rpartition(".")[2]][part].append(name)
    twice = {
        name: sorted(place for places in parts.values() for place in places)
        for name, parts in homes.items()
        if len(parts) > 1 and not name.startswith("__")
    }
    assert {name: twice[name] for name in twice.keys() - SHARED_MODULES.keys()} == {}
    assert SHARED_MODULES.keys() <= twice.keys(), "an exception that nothing needs"


@pytest.mark.parametrize("place", [*INTEGRATION, *DEEP, *ON_POSTGRESQL])
def test_each_place_that_has_a_mark_has_tests(place: str) -> None:
    path = ROOT / place
    assert path.is_file() or any(path.rglob("test_*.py"))
