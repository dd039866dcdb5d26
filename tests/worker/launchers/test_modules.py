"""Environment modules, by a stand-in for the command `module` that a shell sources."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import Attempt, Place
from tests.worker.launchers.process_launcher import PROGRAM
from worker.launchers.modules import load_modules, with_modules

SAY = """
import json, os
print(json.dumps(dict(os.environ)), flush=True)
"""
INIT = """
module() {
  [ "$1" = load ] || return 1
  shift
  for name in "$@"; do
    if [ ! -f "$MODULESHOME/files/$name" ]; then echo "ERROR: no module $name" >&2; return $OLD; fi
    . "$MODULESHOME/files/$name"
    export LOADEDMODULES="${LOADEDMODULES:+$LOADEDMODULES:}$name"
  done
}
"""
CUDA = """
export CUDA_HOME=/sw/cuda-12 PATH="/sw/cuda-12/bin:$PATH" OMP_NUM_THREADS=99 MINE=module
export TRAINYARD_URL=elsewhere
unset OF_NODE
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with the module `cuda/12`."""
    home = tmp_path / "modules"
    (home / "init").mkdir(parents=True)
    (home / "init" / "bash").write_text(INIT)
    (home / "files" / "cuda").mkdir(parents=True)
    (home / "files" / "cuda" / "12").write_text(CUDA)
    monkeypatch.setenv("MODULESHOME", str(home))
    monkeypatch.delenv("LMOD_PKG", raising=False)
    monkeypatch.setenv("OLD", "1")
    monkeypatch.setenv("OF_NODE", "x")
    return home


def start(place: Place, *modules: str, env: dict[str, str] | None = None) -> Attempt:
    place.local = replace(place.local, allow_code=True)
    program: dict[str, Any] = {
        "command": ["python", "-c", SAY],
        "launcher": "command",
        "environment": {"modules": list(modules)},
    }
    return place.start(launcher=PROGRAM, ranks=1, program=program, spec={"env": env or {}})


def test_what_modules_set_reaches_the_ranks(place: Place, home: Path) -> None:
    attempt = start(place, "cuda/12", env={"MINE": "job"})
    assert attempt.exit().outcome == "succeeded"
    found = json.loads(attempt.log(0).splitlines()[0])
    assert (found["CUDA_HOME"], found["LOADEDMODULES"]) == ("/sw/cuda-12", "cuda/12")
    assert "/sw/cuda-12/bin" in found["PATH"].split(":")[:3]
    assert found["PATH"].split(":")[0] != "/sw/cuda-12/bin"
    assert found["MINE"] == "job"
    assert not {"OF_NODE", "TRAINYARD_URL"} & found.keys()


def test_a_module_that_the_node_lacks_is_a_failure_with_its_words(place: Place, home: Path) -> None:
    failure = start(place, "cuda/12", "gcc/99").exit().failure
    assert failure is not None
    assert failure.reason == "launch_error"
    assert failure.message.startswith(
        "program.environment.modules=['cuda/12', 'gcc/99'] cannot be loaded: "
        "ERROR: no module gcc/99"
    )


def test_a_command_that_succeeds_without_the_module_is_a_failure(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLD", "0")
    with pytest.raises(ValueError, match="gcc is not loaded: ERROR: no module gcc"):
        load_modules(["gcc"], user=None, folder=tmp_path)
    assert load_modules(["cuda/12"], user=None, folder=tmp_path)["CUDA_HOME"] == "/sw/cuda-12"


def test_a_node_without_modules_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "init" / "bash").write_text("")
    with pytest.raises(ValueError, match="this node has no command `module`"):
        load_modules(["cuda"], user=None, folder=tmp_path)


def test_variables_of_job_and_launch_override_those_of_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {"A": "node", "B": "node", "C": "node"})
    loaded = {"A": "module", "B": "node", "D": "module", "E": "module"}
    ranks = {"A": "node", "B": "job", "C": "node", "D": "job", "F": "launch"}
    found = with_modules(ranks, loaded, kept={"B": "job", "D": "job"})
    assert found == {"A": "module", "B": "job", "D": "job", "E": "module", "F": "launch"}
