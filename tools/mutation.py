"""Mutation testing: mutates the most critical modules, and counts the mutants that tests detect.

`make mutate` runs this program (docs/mutation.md). `[tool.mutmut]` in `pyproject.toml` lists
modules and tests. mutmut derives a module's name from its path, so it runs in a copy of the tree
with the library's package at the top.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

LEAST_KILLED = 0.9
KILLED = frozenset({"killed", "timeout", "segfault", "caught by type check"})
MUTMUT = (sys.executable, "-m", "mutmut")
LIBRARY = "library/trainyard"
COPY = Path(".venv-mutate") / "tree"


def main(chosen: Sequence[str]) -> int:
    """Run mutmut; print a JSON line per module and surviving mutant; return 1 if too many survive.

    Args:
        chosen: modules to mutate, such as `server.core.leases`; when empty, all listed modules.
    """
    legal = listed_modules(Path("pyproject.toml"))
    if unknown := set(chosen) - set(legal):
        print(f"{', '.join(sorted(unknown))}: not mutated; legal: {', '.join(legal)}")
        return 2
    shutil.rmtree(COPY, ignore_errors=True)  # the tool keeps results of former tests there
    flatten(Path.cwd(), COPY)
    command = [*MUTMUT, "run", *(f"{module}.*" for module in chosen)]
    ran = subprocess.run(command, check=False, cwd=COPY)
    if ran.returncode:
        return ran.returncode
    everything = _results(_read("results", "--all", "true").splitlines())
    results = [
        (name, status) for name, status in everything if module_of(name) in (chosen or legal)
    ]
    for line in report(results):
        print(json.dumps(line))
    for name, status in results:
        if status not in KILLED:
            print(json.dumps({"survivor": name, "status": status, "change": _change(name)}))
    return int(killed_share(results) < LEAST_KILLED)


def flatten(root: Path, to: Path) -> None:
    """Copy the files of a checkout, with the library's package at the top."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = root / name, to / name.replace(f"{LIBRARY}/", "trainyard/")
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    project = to / "pyproject.toml"
    project.write_text(project.read_text().replace(LIBRARY, "trainyard"))


def listed_modules(project: Path) -> list[str]:
    """Return the modules listed in a `pyproject.toml`, in its order."""
    paths = tomllib.loads(project.read_text())["tool"]["mutmut"]["only_mutate"]
    names = (path.removeprefix("library/").removesuffix(".py") for path in paths)
    return [name.replace("/", ".") for name in names]


def module_of(mutant: str) -> str:
    """Return the module of a mutant, such as `a.b` of `a.b.x_read__mutmut_1`."""
    return mutant.rpartition(".")[0]


def report(results: Iterable[tuple[str, str]]) -> Iterator[dict[str, object]]:
    """Yield the numbers of mutants and of killed mutants, for each module and in total."""
    mutants: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    for name, status in results:
        for group in (module_of(name), "all"):
            mutants[group] += 1
            killed[group] += status in KILLED
    for group in sorted(mutants, key=lambda group: (group == "all", group)):
        share = round(killed[group] / mutants[group], 3)
        yield {
            "module": group,
            "mutants": mutants[group],
            "killed": killed[group],
            "share": share,
        }


def killed_share(results: Iterable[tuple[str, str]]) -> float:
    """Return the share of killed mutants; 0 without mutants."""
    statuses = [status in KILLED for _, status in results]
    return sum(statuses) / len(statuses) if statuses else 0.0


def _results(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, colon, status = line.strip().rpartition(": ")
        if colon:
            yield name, status


def _change(name: str) -> list[str]:
    """Return the lines that a mutant removes and adds."""
    lines = _read("show", name).splitlines()
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def _read(*arguments: str) -> str:
    command = [*MUTMUT, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=COPY).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
