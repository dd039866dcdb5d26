"""The example programs: each resumes in mid-epoch from 2 to 3 ranks, as if it had not stopped."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import trainyard
from benchmarks.launch import torchrun
from tests.trainer.ranks import run_ranks
from trainyard.data import merge_digests
from trainyard.spec.job import parse_job_spec
from trainyard.spec.rules import check_new_job

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "examples" / "programs"
EXACT = ("ddp", "fsdp2", "hugging_face", "lightning", "classifier")
STOP, END = 16, 22
"""Steps of the first attempt and in all: the resume lies in the second or third epoch."""
SECONDS = 250.0

TITAN = os.environ.get("TRAINYARD_TEST_TORCHTITAN")
"""The Python of an environment with torchtitan 0.3.0."""
NO_TITAN = "TRAINYARD_TEST_TORCHTITAN names no Python with torchtitan"

Launch = Callable[[int, Path, list[str]], None]


@dataclass(frozen=True)
class Trained:
    """What an attempt recorded."""

    losses: dict[int, float]
    digests: dict[int, str]
    """Digest of the global batch of each step."""


def document(name: str) -> dict[str, Any]:
    """The spec file of an example."""
    return tomllib.loads((PROGRAMS / name / "job.toml").read_text())


def attempt(folder: Path, name: str, number: int = 1) -> Path:
    """Make the run directory of an attempt, which resumes where the one before it stopped."""
    run, root = folder / f"a{number}", folder / "checkpoints"
    run.mkdir(parents=True)
    (run / "metrics").mkdir()
    root.mkdir(exist_ok=True)
    launch: dict[str, Any] = {
        "job_id": "job",
        "attempt": number,
        "roots": {"checkpoints": str(root)},
    }
    if number > 1:
        path = f"job/a{number - 1}/step-{STOP}"
        launch["resume"] = {"checkpoint_id": f"job.a{number - 1}.step-{STOP}", "path": path}
    (run / "attempt.json").write_text(json.dumps(launch))
    (run / "spec.json").write_text(json.dumps(document(name)))
    return run


def under_torchrun(ranks: int, run: Path, words: list[str]) -> None:
    """Start the ranks as a job does, in an empty folder."""
    variables = {
        **os.environ,
        "TRAINYARD_RUN": str(run),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "library"),
    }
    work = run / "work"
    work.mkdir()
    subprocess.run(torchrun(ranks, *words), env=variables, cwd=work, timeout=SECONDS, check=True)


def in_forked_ranks(ranks: int, run: Path, words: list[str]) -> None:
    """Run the same script in processes that have torch loaded."""
    variables = {"TRAINYARD_RUN": str(run)}
    run_ranks(ranks, _script, words, initialize=False, env=variables, timeout_seconds=SECONDS)


def _script(words: list[str]) -> None:
    # The ranks come from a fork server; the workers of their loaders need not.
    multiprocessing.set_start_method("fork", force=True)
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
    trainyard.init().close()  # such a process ends without the functions of atexit


def train(
    launch: Launch, name: str, *, ranks: int, run: Path, steps: int, batch: int | None = None
) -> Trained:
    """Run an example to a number of steps and return what it recorded."""
    words = [str(PROGRAMS / name / "train.py"), "--steps", str(steps)]
    words += [] if batch is None else ["--batch", str(batch)]
    launch(ranks, run, [*words, "--accumulation", "3", "--workers", "2"])
    paths = [run / "metrics.jsonl", *(run / "metrics").iterdir()]
    assert len(paths) == ranks
    records = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    digests: dict[int, list[str]] = {}
    for record in records:
        if record.get("data_digest"):
            digests.setdefault(record["step"], []).append(record["data_digest"])
    assert all(len(found) == ranks for found in digests.values())
    return Trained(
        {r["step"]: r["values"]["train/loss"] for r in records if "train/loss" in r["values"]},
        {step: merge_digests(found) for step, found in digests.items()},
    )


def check_exact_resume(launch: Launch, name: str, folder: Path) -> None:
    """Compare two attempts, on two ranks and on three, with an uninterrupted run on one."""
    whole = train(launch, name, ranks=1, run=attempt(folder / "whole", name), steps=END)
    assert whole.losses.keys() == whole.digests.keys() == set(range(1, END + 1))
    first = train(launch, name, ranks=2, run=attempt(folder, name), steps=STOP)
    second = train(launch, name, ranks=3, run=attempt(folder, name, 2), steps=END)
    assert second.losses.keys() == set(range(STOP + 1, END + 1)), "it resumed, and walked over none"
    assert first.digests | second.digests == whole.digests
    assert first.losses | second.losses == pytest.approx(whole.losses, rel=0, abs=1e-5)
    assert len(set(whole.losses.values())) == END


def test_a_ddp_script_resumes_exactly_on_other_ranks(tmp_path: Path) -> None:
    check_exact_resume(in_forked_ranks, "ddp", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EXACT)
def test_each_example_resumes_exactly_under_torchrun(name: str, tmp_path: Path) -> None:
    check_exact_resume(under_torchrun, name, tmp_path)


@pytest.mark.parametrize("name", [*EXACT, "torchtitan"])
def test_each_spec_is_legal(name: str) -> None:
    spec = document(name)
    local = spec["program"]["code"].pop("local", None)
    if local is not None:  # what a submission makes of it
        assert (PROGRAMS / name / local / spec["program"]["command"][0]).is_file()
        spec["program"]["code"]["pack"] = f"sha256:{'0' * 64}"
    check_new_job(parse_job_spec(spec))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(TITAN is None, reason=NO_TITAN)
def test_torchtitan_resumes_exactly_under_torchrun(tmp_path: Path) -> None:
    assert TITAN is not None
    folder = shutil.copytree(PROGRAMS / "torchtitan", tmp_path / "titan")
    subprocess.run([TITAN, "prepare.py"], cwd=folder, check=True)
    spec = document("torchtitan")
    library = {"PYTHONPATH": str(ROOT / "library")}
    variables = {**os.environ, **spec["env"], **library, "OMP_NUM_THREADS": "1"}

    def losses(ranks: int) -> dict[int, float]:
        command = torchrun(ranks, *spec["program"]["command"], python=Path(TITAN))
        ran = subprocess.run(
            command, cwd=folder, env=variables, check=True, capture_output=True, timeout=SECONDS
        )
        text = re.sub(r"\x1b\[[0-9;]*m", "", (ran.stdout + ran.stderr).decode())
        found = re.findall(r"step: +(\d+) +loss: +([0-9.]+)", text)
        return {int(step): float(loss) for step, loss in found}

    whole = losses(2)
    assert whole.keys() == set(range(1, spec["program"]["steps"] + 1))
    saved = folder / "checkpoints"
    assert sorted(path.name for path in saved.glob("step-*")) == ["step-10", "step-12", "step-5"]
    # As if the attempt had ended before its second save.
    for lost in ("step-10", "step-12"):
        shutil.rmtree(saved / lost)
    after = {step: loss for step, loss in whole.items() if step > 5}
    assert losses(3) == pytest.approx(after, rel=0, abs=1e-5)  # the log has five digits


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(TITAN is None, reason=NO_TITAN)
def test_torchtitans_layouts_are_listed_without_triton() -> None:
    assert TITAN is not None
    words = ["on_cpu.py", "layouts", "--module", "debug", "--config", "debug", "--world-size", "5"]
    listed = subprocess.run(
        [TITAN, *words, "--json"],
        cwd=PROGRAMS / "torchtitan",
        env={**os.environ, "PYTHONPATH": str(ROOT / "library")},
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )
    layouts = json.loads(listed.stdout)["layouts"]
    assert {"dp_shard": 5, "padded_rows": 3}.items() <= layouts[-1].items()
