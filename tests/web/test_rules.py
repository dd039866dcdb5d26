"""Rules of the dashboard's source without a linter: sizes, import arrows, cycles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

SOURCES = Path(__file__).resolve().parent.parent.parent / "web" / "src"
GENERATED = SOURCES / "shared" / "api" / "schema.ts"
MAX_LINES = 400
MAX_FILES = 12
IMPORT = re.compile(r"""^(?:import|export)\b[^'"]*?(?:from\s*)?["']([^"']+)["']""", re.MULTILINE)
LAYERS = {"shared": 0, "features": 1, "app": 2}


def source_files() -> list[Path]:
    found = [p for s in ("*.ts", "*.tsx", "*.css") for p in SOURCES.rglob(s) if p != GENERATED]
    assert found, f"no source lies in {SOURCES}"
    return sorted(found)


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {_name(p): len(p.read_text(encoding="utf-8").splitlines()) for p in source_files()}
    assert {name: n for name, n in lengths.items() if n > MAX_LINES} == {}


def test_no_folder_holds_more_sources_than_the_limit() -> None:
    folders = Counter(_name(path.parent) for path in modules() if ".test." not in path.name)
    assert {name: n for name, n in folders.items() if n > MAX_FILES} == {}


def modules() -> list[Path]:
    """TypeScript sources, tests included."""
    return [path for path in source_files() if path.suffix != ".css"]


def test_no_files_import_each_other_in_a_circle() -> None:
    names = {_name(path): path for path in modules()}
    graph = {
        name: [found for target in imports_of(path.read_text(encoding="utf-8"), name)
               if (found := _file_of(target, names)) is not None]
        for name, path in names.items()
    }  # fmt: skip
    assert sum(map(len, graph.values())) > len(graph), "imports are found"
    assert circle_in(graph) == []


def _file_of(target: str, names: Container[str]) -> str | None:
    """Return the source of an import; None for styles and generated files."""
    return next((file for s in (".ts", ".tsx") if (file := target + s) in names), None)


def circle_in(graph: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a cycle of imports; empty without one."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_the_detector_of_circles() -> None:
    assert circle_in({"a": ["b"], "b": ["c"], "c": []}) == []
    assert sorted({*circle_in({"a": ["b"], "b": ["c"], "c": ["b"]})}) == ["b", "c"]


def test_imports_go_from_app_to_features_to_shared_and_never_sideways() -> None:
    broken = [
        f"{_name(path)} imports {target}"
        for path in source_files()
        for target in imports_of(path.read_text(encoding="utf-8"), _name(path))
        if not may_import(_name(path), target)
    ]
    assert broken == []


def imports_of(text: str, name: str) -> Iterator[str]:
    """Paths below `src` that a file imports: `@/...` and relative ones."""
    for target in IMPORT.findall(text):
        if target.startswith("@/"):
            yield target.removeprefix("@/")
        elif target.startswith("."):
            yield _normal(PurePosixPath(name).parent / target)


def may_import(name: str, target: str) -> bool:
    """Whether a file may import a path: downwards, or within its own feature."""
    own, other = name.split("/"), target.split("/")
    if own[0] not in LAYERS or other[0] not in LAYERS:  # the start of the program, other folders
        return True
    if LAYERS[own[0]] != LAYERS[other[0]]:
        return LAYERS[own[0]] > LAYERS[other[0]]
    return own[0] != "features" or own[1] == other[1]


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _name(path: Path) -> str:
    return path.relative_to(SOURCES).as_posix()


@pytest.mark.parametrize(
    ("name", "line", "legal"),
    [
        ("features/jobs/a.ts", 'import { x } from "@/shared/ui/Button";', True),
        ("features/jobs/a.ts", 'import "./jobs.css";', True),
        ("features/job/logs/a.ts", 'import { x } from "../actions/b";', True),
        ("features/jobs/a.ts", 'import { x } from "../submit/spec";', False),
        ("features/jobs/a.ts", 'import {\n  x,\n} from "@/features/submit/spec";', False),
        ("features/jobs/a.ts", 'export { x } from "@/app/router";', False),
        ("shared/ui/a.ts", 'import type { X } from "@/features/jobs/b";', False),
        ("app/a.ts", 'import { x } from "@/features/jobs/b";', True),
        ("app/a.ts", 'import { x } from "react";', True),
        ("features/a/t.test.ts", 'import d from "../../../../tests/specs/job.json";', True),
    ],
)
def test_the_detector_of_imports(name: str, line: str, legal: bool) -> None:
    assert all(may_import(name, target) for target in imports_of(line, name)) is legal
