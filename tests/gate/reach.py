"""Which files of tests a change reaches, by what each of them imports.

What the product imports in turn is left out: nearly every module reaches nearly every other. A test
that always runs holds what lies in between; a deep one repeats it.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path

TOPS = ("server", "worker", "trainer", "embedded", "provisioner")
TOPS_OF_TESTS = ("tests", "benchmarks", "tools", "examples")
LIBRARY = "trainyard"


def changed_files(root: Path, base: str) -> frozenset[str] | None:
    """Return the files that differ from a commit, new ones included.

    None where the commit is unknown, or no ancestor of the present one.
    """
    ancestor = _git(root, "merge-base", "--is-ancestor", base, "HEAD")
    changed = _git(root, "diff", "--name-only", "-z", "--no-renames", base)
    new = _git(root, "ls-files", "-z", "--others", "--exclude-standard")
    if ancestor is None or changed is None or new is None:
        return None
    return frozenset(filter(None, (changed + new).split("\0")))


def last_commit(root: Path, name: str) -> str | None:
    """Return the id of the commit that last changed a file, if there is one."""
    return (_git(root, "log", "-1", "--format=%H", "--", name) or "").strip() or None


def reaching(root: Path, changed: Set[str], path: Path) -> set[str]:
    """Return the changed files that reach the tests of a file.

    These are the file and the modules of the product that it imports; the helpers and fixtures that
    it uses, with what they import of the tests; and the modules of the folder that its own mirrors
    (`trainer/parallel` for `tests/trainer/parallel`).
    """
    fixtures = {parent / "conftest.py" for parent in path.parents if parent.is_relative_to(root)}
    helpers = _helpers(root, frozenset({path, *filter(Path.exists, fixtures)}))
    used = helpers | _files_of(root, path)
    mirrored = _mirrored(path.relative_to(root).parent)
    whole = mirrored == Path("benchmarks")  # its programs are run, and not imported
    own = {
        name
        for name in changed
        if Path(name).parent == mirrored or (whole and Path(name).is_relative_to(mirrored))
    }
    return own | (changed & {file.relative_to(root).as_posix() for file in used})


def _mirrored(folder: Path) -> Path:
    """Return the folder of the product that a folder of tests mirrors."""
    below = folder.relative_to("tests")
    return Path("library", LIBRARY, *below.parts[1:]) if below.parts[:1] == ("library",) else below


def _helpers(root: Path, paths: frozenset[Path]) -> set[Path]:
    """Return files, and what they import of the tests, transitively."""
    found, waiting = set[Path](), list(paths)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += (f for f in _files_of(root, path) if f.is_relative_to(root / "tests"))
    return found


@cache
def _files_of(root: Path, path: Path) -> frozenset[Path]:
    """Return our files that a file imports."""
    found = (_file_of(root, module) for module in _modules_of(path))
    return frozenset(file for file in found if file is not None)


def _modules_of(path: Path) -> Iterator[str]:
    """Yield the modules that a file may import: `from a import b` names `a`, and perhaps `a.b`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file_of(root: Path, module: str) -> Path | None:
    first, *rest = module.split(".")
    if first == LIBRARY:
        root = root / "library"
    elif first not in (*TOPS, *TOPS_OF_TESTS):
        return None
    path = root.joinpath(first, *rest)
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def _git(root: Path, *words: str) -> str | None:
    """Return what git prints; None where it fails."""
    ran = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return None if ran.returncode else ran.stdout
