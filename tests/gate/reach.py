"""Which files of tests a change reaches, by what each of them imports.

What the product imports in turn is left out: nearly every module reaches nearly every other, and
the tests that always run cover it.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Set
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

TOPS = ("server", "worker", "trainer", "embedded", "provisioner")
TOPS_OF_TESTS = ("tests", "benchmarks", "tools", "examples")
LIBRARY = "trainyard"
OF_THE_GATE = frozenset({"tests/gate/turn.json", "tests/second_tries.json"})
"""What the gate writes in each landing; no other test reads it."""
MODULE_OF_TESTS = re.compile(r"tests(\.\w+)+")
API = ("server/*/*/endpoints.py", "server/api/http/*", "server/app/*", "server/api/wire/*")
MIRRORS = {
    "tests/benchmarks": ("benchmarks/*",),
    "tests/chaos/rank_probe": ("trainer/rank_probe/*", "library/trainyard/prove/*/*"),
    "tests/e2e/own_planes/test_elastic.py": ("server/scheduler/elastic/*",),
    "tests/e2e/own_planes/test_accounts.py": ("worker/run_as/*", "worker/node/*"),
    "tests/e2e/own_planes/test_environments.py": ("worker/environments/*", "server/jobs/packs/*"),
    "tests/e2e/own_planes/test_goodput.py": ("server/telemetry/goodput/*",),
    "tests/e2e/own_planes/test_object_store.py": ("trainer/storage/*", "trainer/checkpoint/*"),
    "tests/e2e/own_planes/test_pilot.py": ("worker/pilot/*", "worker/inbox/*"),
    "tests/e2e/own_planes/test_prove.py": ("library/trainyard/prove/*",),
    "tests/e2e/own_planes/test_up_and_down.py": ("embedded/*",),
    "tests/e2e/own_planes/test_users.py": ("worker/node/*", "worker/launchers/*"),
    "tests/e2e/test_artifacts.py": ("worker/artifacts/*", "server/telemetry/artifacts/*"),
    "tests/e2e/test_auto_export.py": (
        *("server/jobs/checkpoints/*", "trainer/operations/*", "trainer/hugging_face/*"),
    ),
    "tests/e2e/test_checkpoints.py": ("server/jobs/checkpoints/*", "server/jobs/operations/*"),
    "tests/e2e/test_event_files.py": ("worker/supervisor/*", "library/trainyard/run/other_tools/*"),
    "tests/e2e/test_example_programs.py": ("examples/*",),
    "tests/e2e/test_parts_die.py": ("embedded/*", "worker/supervisor/*", "server/core/liveness.py"),
    "tests/e2e/test_program_checkpoints.py": ("library/trainyard/run/checkpoints/*",),
    "tests/e2e/test_rollback.py": ("server/jobs/attempts/*", "trainer/loop/*"),
    "tests/e2e/test_run_directories.py": ("worker/node/*", "worker/upkeep/*"),
    "tests/e2e/test_scripts.py": ("library/trainyard/run/session/*", "server/telemetry/ingest/*"),
    "tests/library/adapters": (
        "library/trainyard/adapters/*",
        "library/trainyard/data/*",
        "library/trainyard/run/session/*",
    ),
    "tests/library/cli/commands/test_shell.py": (
        "library/trainyard/cli/commands/*",
        "server/jobs/shells/*",
        "worker/supervisor/*",
    ),
    "tests/library/planner/test_memory_of_the_trainer.py": (
        "library/trainyard/planner/*",
        "trainer/parallel/*",
    ),
    "tests/objects": ("trainer/storage/*", "trainer/checkpoint/*", "worker/node/*"),
    "tests/server/api/leaks": (
        *("server/core/visibility/*", "server/core/people/*", "server/api/auth/*"),
        *("server/jobs/*/*", "server/telemetry/*/*", "server/cluster/*/*"),
    ),
    "tests/server/api/sso": (
        "server/api/sso/*",
        "server/api/issuer_logins/*",
        "server/core/people/*",
        "tests/issuer/*",
    ),
    "tests/server/api": API,
    "tests/trainer/loop": ("trainer/loop/*", "trainer/checkpoint/*", "trainer/storage/*"),
    "tests/trainer/models/own": ("trainer/models/*", "trainer/parallel/*", "examples/own_model/*"),
    "tests/trainer/numerics": ("trainer/parallel/*", "trainer/models/*", "docs/numerics.md"),
    "tests/trainer/test_by_hand.py": ("trainer/*", "docs/trainer.md"),
    "tests/trainer/test_presets.py": ("trainer/*", "examples/presets/*", "docs/presets.md"),
    "tests/web": ("web/*", "library/trainyard/protocol/rest/*", *API),
}
"""What a folder or file of tests covers, in place of the product's folder of the same name."""


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


def full_id(root: Path, commit: str) -> str:
    """Return the whole id of a commit that is known."""
    return (_git(root, "rev-parse", f"{commit}^{{commit}}") or "").strip()


def commits_since(root: Path, base: str) -> int:
    """Return the number of commits after one that is an ancestor of the present one."""
    return int(_git(root, "rev-list", "--count", f"{base}..HEAD") or 0)


def file_at(root: Path, commit: str, name: str) -> str | None:
    """Return the text of a file at a commit; None where the commit lacks it, or is unknown."""
    return _git(root, "show", f"{commit}:{name}")


def is_reached(root: Path, changed: Set[str], path: Path) -> bool:
    """Return whether a change reaches the tests of a file.

    It does if it has changed the file, or a module of the product that the file imports; a fixture
    or helper of the tests that it uses, directly or not; data in its folder of tests or in one
    above; or what its folder covers: the folder of
    the product with the same name (`trainer/parallel` for `tests/trainer/parallel`), or `MIRRORS`.
    """
    folders = [parent for parent in path.parents if parent.is_relative_to(root)]
    fixtures = {folder / "conftest.py" for folder in folders}
    helpers = _helpers(root, frozenset({path, *filter(Path.exists, fixtures)}))
    imported = _files_of(root, path)
    # A package passes on what it imports.
    exported = {f for each in imported if each.name == "__init__.py" for f in _files_of(root, each)}
    used = helpers | fixtures | imported | exported
    if changed & {file.relative_to(root).as_posix() for file in used}:
        return True
    data = (name for name in changed - OF_THE_GATE if name.startswith("tests/"))
    if any(_is_data_for(path, root / name) for name in data):
        return True
    covered = covered_by(path.relative_to(root))
    return any(fnmatch(name, pattern) for name in changed for pattern in covered)


def covered_by(path: Path) -> tuple[str, ...]:
    """Return the patterns of the files that a file of tests covers."""
    folder = path.parent.as_posix()
    below = folder.removeprefix("tests").removeprefix("/")
    own = below.replace("library", f"library/{LIBRARY}", 1)
    return MIRRORS.get(path.as_posix()) or MIRRORS.get(folder, (f"{own}/*",))


def _is_data_for(path: Path, changed: Path) -> bool:
    """Return whether a file of tests may read a changed one that lies with it, or above it."""
    return changed.suffix != ".py" and path.is_relative_to(_tests_around(changed.parent))


def _tests_around(folder: Path) -> Path:
    """Return the folder, or the nearest one above it, that has files of tests, or had them."""
    while folder.name != "tests" and not any(folder.glob("test_*.py")):
        folder = folder.parent
    return folder


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
        elif isinstance(node, ast.Constant) and MODULE_OF_TESTS.fullmatch(str(node.value)):
            yield str(node.value)  # which a process of its own runs


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
