"""The import graph: no circle between files or folders, and no crowded folder.

import-linter holds which part may import which; this holds that no two import each other, imports
within functions included.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "library/trainyard",
    "server",
    "worker",
    "trainer",
    "embedded",
    "provisioner",
    "tools",
    "benchmarks",
)
"""Folders of packages; the parent of each is on the path of Python."""
MAX_FILES = 12
"""Python files of a folder, without `__init__`."""

Graph = Mapping[str, set[str]]


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(package: str, root: Path) -> Graph:
    """Return which modules of a package each of its modules imports."""
    folder = root / package
    files = {module_name(path, folder.parent): path for path in folder.rglob("*.py")}
    return {name: set(_imported(path, files.keys())) - {name} for name, path in files.items()}


def folders(graph: Graph) -> Graph:
    """Return the graph between the direct children of a package."""
    found: dict[str, set[str]] = {}
    for module, imported in graph.items():
        found.setdefault(_child(module), set()).update(map(_child, imported))
    return {name: imported - {name} for name, imported in found.items()}


def _child(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _imported(path: Path, known: Collection[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known:
                    yield inner
                elif node.module in known:
                    yield node.module


def circle(graph: Graph) -> list[str]:
    """Return modules that import each other in a circle; none where there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_files_import_each_other(package: str) -> None:
    assert circle(import_graph(package, ROOT)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folders_import_each_other(package: str) -> None:
    assert circle(folders(import_graph(package, ROOT))) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_is_crowded(package: str) -> None:
    inside = (p for p in (ROOT / package).rglob("*") if p.is_dir())
    crowded = {
        str(folder.relative_to(ROOT)): count
        for folder in (ROOT / package, *inside)
        if (count := len([p for p in folder.glob("*.py") if p.name != "__init__.py"])) > MAX_FILES
    }
    assert crowded == {}


def test_a_circle_is_named(tmp_path: Path) -> None:
    files = {
        "part/__init__.py": "",
        "part/a/one.py": "from part.b import two\n",
        "part/b/two.py": "def load():\n    from part.c.three import x\n",
        "part/c/three.py": "import part.a.one\nimport part.d\nx = 1\n",
        "part/d.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph = import_graph("part", tmp_path)
    assert set(circle(graph)) == {"part.a.one", "part.b.two", "part.c.three"}
    assert set(circle(folders(graph))) == {"part.a", "part.b", "part.c"}
    assert circle({name: found - {"part.a.one"} for name, found in graph.items()}) == []
