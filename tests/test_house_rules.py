"""The rules of our own that no linter knows, held over every source file of the repository."""

import ast
import importlib
import importlib.metadata
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, RootModel

from trainyard.base.model_base import description_of

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400
PARTS = ("server", "worker", "trainer", "embedded", "provisioner", "migrations")
LIBRARY = "trainyard"
BESIDE = {"trainer": ("s3", "transformers"), "provisioner": ("kubernetes",)}
"""Extras whose packages a part imports only in the features that need them."""
ADAPTERS = "library/trainyard/adapters"  # each of them needs the library that it adapts
UNPICKLER = "trainer/checkpoint/reader/metadata.py"
PICKLE_MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib"}
PICKLE_READERS = {"load", "loads", "Unpickler"}
# Written in pieces, so that this file keeps its own rule.
FORBIDDEN_TEXT = re.compile(
    r"(?<![\w.-])/(?:wo" r"rk|op" r"t)/|\bagent" r" session|\bcla" r"ude\b|\bllm" r" assistant",
    re.IGNORECASE,
)
UPDATE_STATE_SQL = re.compile(r"\bupdate\b.+\bset\b.*\bstate\s*=", re.IGNORECASE | re.DOTALL)

Finding = tuple[int, str]  # line, what is wrong there
Node = TypeVar("Node", bound=ast.AST)
Detector = Callable[[ast.Module], Iterator[Finding]]


# ---- what is looked at -------------------------------------------------------------------------


@cache
def source_files() -> tuple[Path, ...]:
    """Tracked and new files; without git, all but those in hidden and built folders."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    git = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if git.returncode == 0:
        names = [name for name in git.stdout.split("\0") if name]
        return tuple(path for name in names if (path := ROOT / name).is_file())
    return tuple(_walk(ROOT))


def _walk(root: Path) -> Iterator[Path]:
    built = {"node_modules", "__pycache__", "build", "dist"}
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [
            s for s in subfolders if s not in built and (s == ".ci" or not s.startswith("."))
        ]
        yield from (Path(folder, name) for name in names)


def python_files(part: str = "") -> list[Path]:
    return [p for p in source_files() if p.suffix == ".py" and p.is_relative_to(ROOT / part)]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def nodes(module: ast.Module, *kinds: type[Node]) -> Iterator[Node]:
    return (node for node in ast.walk(module) if isinstance(node, kinds))


def findings(files: list[Path], detect: Detector) -> list[str]:
    """Each finding as `path:line: what`."""
    return [f"{_name(p)}:{line}: {what}" for p in files for line, what in detect(parse(p))]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _report(broken: list[str], rule: str) -> str:
    return "\n".join([rule, *broken])


# ---- size, docstrings, words --------------------------------------------------------------------


def test_no_python_file_is_longer_than_the_limit() -> None:
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in python_files()}
    broken = [f"{_name(p)}:{n}: has {n} lines" for p, n in lengths.items() if n > MAX_LINES]
    assert not broken, _report(broken, f"at most {MAX_LINES} lines a file; split by noun:")


def test_every_module_opens_with_a_docstring() -> None:
    broken = [f"{_name(p)}:1: no docstring" for p in python_files() if not has_docstring(parse(p))]
    assert not broken, _report(broken, "each module opens with one line that names its purpose:")


def has_docstring(module: ast.Module) -> bool:
    return bool(ast.get_docstring(module))


def test_no_file_names_a_place_or_tool_of_one_machine() -> None:
    broken = [
        f"{_name(p)}:{line}: {what}" for p in source_files() for line, what in forbidden_text(p)
    ]
    assert not broken, _report(broken, "source must read the same on every machine:")


def forbidden_text(path: Path) -> Iterator[Finding]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:  # an image or another binary file
        return
    for number, line in enumerate(lines, start=1):
        if match := FORBIDDEN_TEXT.search(line):
            yield number, f"has {match.group()!r}"


# ---- specs: every field explains itself ---------------------------------------------------------


def test_every_field_of_specs_has_a_description() -> None:
    models = list(spec_models())
    assert models, "found no pydantic model in the library"
    broken = [line for model in models for line in undescribed_fields(model)]
    assert not broken, _report(broken, "a docstring under the field becomes its help text:")


def spec_models() -> Iterator[type[BaseModel]]:
    for module in _modules_of("trainyard.spec"):
        for value in vars(module).values():
            is_model = inspect.isclass(value) and issubclass(value, BaseModel)
            if not is_model or value.__module__ != module.__name__:
                continue
            # A parametrized model has no source of its own; its origin is looked at.
            if not value.__pydantic_generic_metadata__["origin"]:
                yield value


def _modules_of(package: str) -> Iterator[ModuleType]:
    root = importlib.import_module(package)
    yield root
    for found in pkgutil.walk_packages(root.__path__, prefix=f"{package}."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def undescribed_fields(model: type[BaseModel]) -> Iterator[str]:
    if issubclass(model, RootModel):
        return
    source, first = inspect.getsourcelines(model)
    for name in model.model_fields:
        if not description_of(model, name).strip():
            offset = next((i for i, s in enumerate(source) if s.strip().startswith(f"{name}:")), 0)
            path = _name(Path(inspect.getfile(model)).resolve())
            yield f"{path}:{first + offset}: {model.__qualname__}.{name} has no docstring"


# ---- server: one commit site, one door for states -----------------------------------------------


def test_server_commits_in_one_place() -> None:
    sites = findings(python_files("server"), commit_sites)
    assert len(sites) <= 1, _report(sites, "one request is one transaction, committed at the edge:")


def commit_sites(module: ast.Module) -> Iterator[Finding]:
    """Calls of `.commit()`, and `with ....begin()`, which commits when it ends."""
    for call in nodes(module, ast.Call):
        if _is_method_call(call, "commit"):
            yield call.lineno, "calls .commit()"
    blocks: Iterator[ast.With | ast.AsyncWith] = nodes(module, ast.With, ast.AsyncWith)
    for block in blocks:
        if any(_is_method_call(item.context_expr, "begin") for item in block.items):
            yield block.lineno, "enters .begin(), which commits"


def test_server_updates_states_in_one_module() -> None:
    sites = findings(python_files("server"), state_updates)
    modules = {site.split(":")[0] for site in sites}
    assert len(modules) <= 1, _report(sites, "one module is the only door for states:")


def state_updates(module: ast.Module) -> Iterator[Finding]:
    """`update(...).values(state=...)`, `row.state = ...` and SQL text that sets `state`."""
    for call in nodes(module, ast.Call):
        if _is_method_call(call, "values") and _sets_state(call) and _starts_with_update(call.func):
            yield call.lineno, "updates a state column"
    for attribute in nodes(module, ast.Attribute):
        if _is_assigned_state(attribute):
            yield attribute.lineno, "assigns to .state"
    for constant in nodes(module, ast.Constant):
        if isinstance(constant.value, str) and UPDATE_STATE_SQL.search(constant.value):
            yield constant.lineno, "updates a state column in SQL text"


def _is_method_call(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
    )


def _sets_state(call: ast.Call) -> bool:
    names: list[object] = [keyword.arg for keyword in call.keywords]
    for argument in call.args:
        if isinstance(argument, ast.Dict):
            names += [k.value for k in argument.keys if isinstance(k, ast.Constant)]
    return "state" in names


def _starts_with_update(func: ast.expr) -> bool:
    calls = (node.func for node in ast.walk(func) if isinstance(node, ast.Call))
    return any(
        (isinstance(f, ast.Name) and f.id == "update")
        or (isinstance(f, ast.Attribute) and f.attr == "update")
        for f in calls
    )


def _is_assigned_state(attribute: ast.Attribute) -> bool:
    """`row.state = ...`, but not `self.state = ...`, which is an object's own."""
    own = isinstance(attribute.value, ast.Name) and attribute.value.id == "self"
    return attribute.attr == "state" and isinstance(attribute.ctx, ast.Store) and not own


# ---- pickles run commands when they are read ----------------------------------------------------


def test_pickles_are_read_by_the_unpickler_only() -> None:
    named = re.compile("|".join([*PICKLE_MODULES, r"\bload\b"]))  # to walk all trees takes long
    files = [p for p in python_files() if _name(p) != UNPICKLER and named.search(p.read_text())]
    broken = findings(files, pickle_reads)
    assert not broken, _report(broken, f"a pickle runs commands on load; use {UNPICKLER}:")


def pickle_reads(module: ast.Module) -> Iterator[Finding]:
    """Reads through a pickle module by any name, and `torch.load` without `weights_only=True`."""
    imported = (alias for node in nodes(module, ast.Import) for alias in node.names)
    aliases = {alias.asname or alias.name for alias in imported if alias.name in PICKLE_MODULES}
    for statement in nodes(module, ast.ImportFrom):
        taken = PICKLE_READERS & {alias.name for alias in statement.names}
        if taken and statement.module in PICKLE_MODULES:
            yield statement.lineno, f"imports {', '.join(sorted(taken))} from {statement.module}"
    for attribute in nodes(module, ast.Attribute):
        if attribute.attr in PICKLE_READERS and ast.unparse(attribute.value) in aliases:
            yield attribute.lineno, f"uses {ast.unparse(attribute)}"
    for call in nodes(module, ast.Call):
        safe = "weights_only=True" in map(ast.unparse, call.keywords)
        if ast.unparse(call.func) == "torch.load" and not safe:
            yield call.lineno, "calls torch.load without weights_only=True"


# ---- a part imports only what its extra installs ------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_a_part_imports_only_what_its_extra_installs(part: str) -> None:
    _check_imports(part, installed_with(part))


def test_the_library_imports_only_what_it_installs() -> None:
    _check_imports("library", _with_dependencies(_project("library")["dependencies"]))
    _check_imports(ADAPTERS, installed_with("test"))


def _check_imports(part: str, allowed: frozenset[str]) -> None:
    # torch for GPUs depends on triton, torch for CPUs does not. torchtitan has an environment of
    # its own, which also has torch.
    with_torch = {"triton": ["torch"], "torchtitan": ["torch"]}
    owners = {**with_torch, **importlib.metadata.packages_distributions()}
    broken = [
        f"{_name(path)}:{line}: imports {module}, which no package of the extra brings"
        for path in python_files(part)
        if part == ADAPTERS or ROOT / ADAPTERS not in path.parents
        for line, module in outside_imports(parse(path))
        if not allowed & {canonicalize_name(name) for name in owners.get(module, [])}
    ]
    assert not broken, _report(broken, f"name it in pyproject.toml, in what {part!r} installs:")


def outside_imports(module: ast.Module) -> Iterator[Finding]:
    """The top-level name of every import that is neither ours nor the standard library's."""
    found = [(node.lineno, a.name) for node in nodes(module, ast.Import) for a in node.names]
    found += [(node.lineno, node.module or "") for node in nodes(module, ast.ImportFrom)]
    for line, name in found:
        top = name.partition(".")[0]
        if top not in (*PARTS, LIBRARY) and top not in sys.stdlib_module_names:
            yield line, top


@cache
def installed_with(part: str) -> frozenset[str]:
    """Names of pydantic and of the part's extra, transitive ones included.

    What the library brings for its client counts for no program: each names what it imports.
    """
    project = _project(".")
    # The migrations run inside the server.
    extra = "server" if part == "migrations" else part
    optional = project["optional-dependencies"]
    beside = [line for name in BESIDE.get(part, ()) for line in optional[name]]
    return _with_dependencies(project["dependencies"] + optional.get(extra, []) + beside)


def _project(folder: str) -> dict[str, Any]:
    text = (ROOT / folder / "pyproject.toml").read_text(encoding="utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def _with_dependencies(lines: list[str]) -> frozenset[str]:
    names: set[str] = set()
    todo = [Requirement(line) for line in lines]
    while todo:
        requirement = todo.pop()
        if requirement.name in {"trainyard-library", "trainyard-programs"}:  # ours
            continue
        key = canonicalize_name(requirement.name)
        fresh = key not in names
        names.add(key)
        if fresh or requirement.extras:
            todo += _requirements_of(requirement, names)
    return frozenset(names)


def _requirements_of(requirement: Requirement, known: set[str]) -> Iterator[Requirement]:
    try:
        lines = importlib.metadata.requires(requirement.name) or []
    except importlib.metadata.PackageNotFoundError:  # for another platform or Python
        return
    for line in lines:
        found = Requirement(line)
        wanted = [{"extra": extra} for extra in requirement.extras] or [{"extra": ""}]
        needed = found.marker is None or any(found.marker.evaluate(env) for env in wanted)
        if needed and canonicalize_name(found.name) not in known:
            yield found


def test_every_command_of_the_makefile_runs_whatever_files_there_are() -> None:
    text = (ROOT / "Makefile").read_text()
    commands = set(re.findall(r"^([a-z-]+):.*## ", text, flags=re.MULTILINE))
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    assert commands - set(phony.split()) == set()


# ---- the detectors themselves: planted faults are caught, look-alikes are not -------------------


@pytest.mark.parametrize(
    ("detect", "source", "lines"),
    [
        (commit_sites, "session.commit()\nsession.flush()", [1]),
        (commit_sites, "with engine.begin() as connection:\n    pass", [1]),
        (commit_sites, "with session.begin_nested():\n    pass", []),
        (state_updates, "update(Job).where(Job.id == 1).values(state='failed')", [1]),
        (state_updates, "update(Job).values({'state': 'failed'})", [1]),
        (state_updates, "jobs.update().values(state='failed')", [1]),
        (state_updates, "text('UPDATE jobs SET note = 1, state = 2')", [1]),
        (state_updates, "job.state = 'failed'", [1]),
        (state_updates, "insert(Job).values(state='queued')", []),
        (state_updates, "update(Job).values(note='x')\nself.state = 1\napp.state.x = 2", []),
        (pickle_reads, "import pickle as p\np.load(f)", [2]),
        (pickle_reads, "from pickle import Unpickler", [1]),
        (pickle_reads, "torch.load(f)\ntorch.load(f, weights_only=True)", [1]),
        (pickle_reads, "import json, pickle\njson.load(f)\npickle.dumps(x)", []),
        (outside_imports, "import os, torch.nn\nfrom trainyard import spec\nimport yaml", [1, 3]),
    ],
)
def test_detectors_catch_what_they_name(detect: Detector, source: str, lines: list[int]) -> None:
    assert [line for line, _ in detect(ast.parse(source))] == lines


def test_the_words_detector_catches_what_it_names(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("see /" + "opt/x\nfine: a/work/b, /workspace\nan Agent" + " session\n")
    assert [line for line, _ in forbidden_text(page)] == [1, 3]


def test_the_field_detector_names_the_field() -> None:
    class Planted(BaseModel):
        step: int

    assert [line.split(": ")[1] for line in undescribed_fields(Planted)] == [
        "test_the_field_detector_names_the_field.<locals>.Planted.step has no docstring"
    ]
