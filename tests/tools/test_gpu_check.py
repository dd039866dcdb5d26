"""The checks of a GPU: their runs, and the fields of their lines."""

import importlib
import importlib.metadata
import inspect
import json
import os
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.trainer import spec_of
from tests.e2e.control_plane import wait_for
from tests.trainer.ranks import run_ranks
from tools.gpu_check import runner
from tools.gpu_check.__main__ import main
from tools.gpu_check.check import DeviceKind, Here
from tools.gpu_check.plan import RECIPES, STAGES, Check, named_stages
from tools.gpu_check.stages import execution, fake_ranks, float8, layouts, speed
from tools.gpu_check.stages.start import CUDA_TESTS, files_with_cuda_tests
from tools.gpu_check.training import INPUTS
from trainyard.planner.plan import plan
from trainyard.prove.figures import at_least, at_most, equal, judged, largest_difference, reported
from trainyard.spec.rules import check_job_spec
from trainyard.training.known_devices import Slot

ROOT = Path(__file__).resolve().parents[2]
H100 = Slot("cuda", "NVIDIA H100 80GB HBM3", 85_000_000_000)
ROOM = 4 * 2**30
"""For the context of CUDA, and what the planner does not know."""
HERE = "tests.tools.checks_for_tests"
NAN = float("nan")


# ---- figures and bounds --------------------------------------------------------------------------


def test_a_check_passes_only_within_all_its_bounds() -> None:
    assert judged([at_most("a", 1.0, 1.0), reported("b", 7)]) == {
        "status": "passed",
        "figures": {"a": 1.0, "b": 7},
        "bounds": {"a": "<= 1"},
    }
    missed = judged([at_most("a", 1.0, 1.0), at_least("b", 1.0, 2.0)])
    assert (missed["status"], missed["error"]) == ("failed", "b is 1.0, not >= 2")
    assert judged([reported("a", 1)])["error"] == "the check has no bound"
    assert judged([])["status"] == "failed"


@pytest.mark.parametrize(
    "figure", [at_most("a", NAN, 1.0), at_least("a", NAN, 1.0), equal("a", "x", "y")]
)
def test_what_is_no_number_is_within_no_bound(figure: Any) -> None:
    line = judged([figure])
    assert line["status"] == "failed"
    json.loads(json.dumps(line), parse_constant=pytest.fail)  # NaN is no JSON


def test_series_differ_by_their_worst_pair_and_never_agree_on_nan() -> None:
    assert largest_difference([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
    assert largest_difference([1.0, NAN], [1.0, NAN]) == float("inf")
    for values in ([], [1.0]):
        with pytest.raises(ValueError):  # noqa: PT011 -- zip's own words for one of them
            largest_difference(values, [])


# ---- the runner ----------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A file to which each run of the passing check appends a letter."""
    return tmp_path / "runs"


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch, runs: Path) -> dict[str, tuple[Check, ...]]:
    """Two stages instead of the real ones: one passes, and one fails in every way."""
    bad = ("misses", "has_no_bound", "raises", "crashes")
    found = {
        "good": (
            Check("passes", f"{HERE}:passes", {"times": str(runs)}),
            Check("is_skipped", f"{HERE}:raises", needs_cuda="there is no such thing here"),
        ),
        "bad": (
            *(Check(name, f"{HERE}:{name}") for name in bad),
            Check("hangs", f"{HERE}:hangs", seconds=1.0),
        ),
    }
    monkeypatch.setattr(runner, "STAGES", found)
    return found


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the process groups in which checks have run."""
    found: list[int] = []
    popen = subprocess.Popen

    def noted(*words: Any, **named: Any) -> subprocess.Popen[bytes]:
        process = popen(*words, **named)
        found.append(os.getpgid(process.pid))
        return process

    monkeypatch.setattr(subprocess, "Popen", noted)
    return found


def test_every_way_to_fail_is_one_line_and_not_the_end(
    stages: dict[str, tuple[Check, ...]], groups: list[int], tmp_path: Path
) -> None:
    assert not runner.run_stages(["bad", "good"], tmp_path / "to", "cpu")
    header, *lines = runner.read_lines(tmp_path / "to" / runner.LINES)
    assert header["device"] == "cpu"
    assert header["versions"]["torch"] == importlib.metadata.version("torch")
    assert [(line["stage"], line["check"]) for line in lines] == [
        (stage, check.name) for stage in ("bad", "good") for check in stages[stage]
    ]
    by_name = {line["check"]: line for line in lines}
    assert {name: line["status"] for name, line in by_name.items()} == {
        "misses": "failed",
        "has_no_bound": "failed",
        "raises": "failed",
        "crashes": "failed",
        "hangs": "failed",
        "passes": "passed",
        "is_skipped": "skipped",
    }
    assert by_name["misses"]["error"] == "value is nan, not <= 1"
    assert "ValueError: dim=7 is odd" in by_name["raises"]["error"]
    assert by_name["crashes"]["error"].startswith("exit code -11")
    assert by_name["hangs"]["error"].startswith("no end within 3 s")  # three times on a CPU
    assert by_name["is_skipped"]["reason"] == "there is no such thing here"
    passed = by_name["passes"]
    assert (passed["figures"], passed["bounds"]) == (
        {"value": 0.5, "device": "cpu"},
        {"value": "<= 1"},
    )
    assert passed["seconds"] > 0
    assert "ValueError: dim=7 is odd" in (tmp_path / "to" / runner.FAILED).read_text()
    assert len(groups) == 6, "a process group for each check that is not skipped"
    # A killed process may need a moment to end.
    wait_for(lambda: not list(command_lines(groups)), "end of all processes of the checks")


def command_lines(groups: Collection[int]) -> Iterator[str]:
    """Yield the command lines of the processes of groups; a killed process has none."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if os.getpgid(int(path.parent.name)) in groups and (line := path.read_text()):
                yield line


def test_a_second_run_skips_what_the_same_versions_have_passed(
    stages: dict[str, tuple[Check, ...]],
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    to = tmp_path / "to"
    for _ in range(2):
        assert runner.run_stages(["good"], to, "cpu")
    assert runs.read_text() == "x"
    lines = to / runner.LINES
    # A line truncated by the end of a command does not count, and hides no other line.
    lines.write_text(lines.read_text() + '{"stage": "good", "check": "pas')
    monkeypatch.setattr(runner, "_versions", lambda: {"torch": "another"})
    assert runner.run_stages(["good"], to, "cpu")
    assert runs.read_text() == "xx", "another version has passed nothing yet"
    headers = [line for line in runner.read_lines(lines) if "versions" in line]
    assert headers[-1]["versions"] == {"torch": "another"}


def test_checks_run_at_once_but_for_those_that_measure_time(
    stages: dict[str, tuple[Check, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {name: str(tmp_path / name) for name in ("met", "timed")}
    for folder in folders.values():
        Path(folder).mkdir()
    stages["met"] = tuple(
        Check(name, f"{HERE}:meets", {"folder": folders["met"], "name": name, "count": 3})
        for name in "abc"
    )
    stages["timed"] = tuple(
        Check(name, f"{HERE}:is_alone", {"folder": folders["timed"]}) for name in "ab"
    )
    monkeypatch.setattr(runner, "TIMED", {"timed"})
    assert runner.run_stages(["met", "timed"], tmp_path / "to", "cpu", jobs=3)
    _, *lines = runner.read_lines(tmp_path / "to" / runner.LINES)
    assert sorted(line["stage"] + line["check"] for line in lines[:3]) == ["meta", "metb", "metc"]
    assert [line["stage"] + line["check"] for line in lines[3:]] == ["timeda", "timedb"]
    # Of all that ended meanwhile: of none.
    assert not any("processor_seconds" in line for line in lines)


def test_an_interrupt_ends_the_checks_that_run(
    stages: dict[str, tuple[Check, ...]],
    groups: list[int],
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(path: Path, line: dict[str, Any]) -> None:
        if "check" in line:
            wait_for(lambda: len(groups) == 2, "start of the other check")
            raise KeyboardInterrupt

    stages["two"] = (
        Check("passes", f"{HERE}:passes", {"times": str(runs)}),
        Check("hangs", f"{HERE}:hangs", seconds=200.0),
    )
    monkeypatch.setattr(runner, "_append", interrupted)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        runner.run_stages(["two"], tmp_path / "to", "cpu", jobs=2)
    assert time.monotonic() - began < 200.0
    wait_for(lambda: not list(command_lines(groups)), "end of all processes of the checks")


def test_a_stage_whose_time_is_over_fails_what_is_left(
    stages: dict[str, tuple[Check, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STAGE_SECONDS", 0.0)
    assert not runner.run_stages(["good"], tmp_path / "to", "cpu")
    _, line, _ = runner.read_lines(tmp_path / "to" / runner.LINES)
    assert "the time of the stage was over" in line["error"]


def test_the_exit_status_is_that_of_the_checks(
    stages: dict[str, tuple[Check, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--to", str(tmp_path / "to"), "--device", "cpu"]
    monkeypatch.setattr("tools.gpu_check.plan.STAGES", stages)
    stages["bad"] = stages["bad"][:1]
    assert main([*words, "--stages", "good"]) == 0
    assert main([*words, "--stages", "good,bad"]) == 1


@pytest.mark.parametrize(
    "words",
    [[], ["--to", "x", "--stages", "nope"], ["--to", "x", "--mode"], ["--to", "x", "--jobs", "0"]],
)
def test_a_wrong_command_line_runs_nothing(
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    if "nope" in words:
        assert f"no stage 'nope'; legal: {', '.join(STAGES)}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_each_check_of_the_plan_is_a_function_that_takes_its_arguments() -> None:
    for stage, checks in STAGES.items():
        assert len({check.name for check in checks}) == len(checks), stage
        for check in checks:
            module, _, name = check.function.partition(":")
            function = getattr(importlib.import_module(module), name)
            inspect.signature(function).bind("here", **check.arguments)
            json.dumps(check.arguments)
    assert named_stages("start, speed") == ["start", "speed"]


@pytest.mark.parametrize("size", ["1B", "3B", "8B"])
@pytest.mark.parametrize("way", ["eager", "compiled", "float8"])
def test_each_timed_step_is_legal_and_fits_on_one_gpu_of_80_gb(size: str, way: str) -> None:
    spec = spec_of(speed.on_cuda(size, way))
    check_job_spec(spec, slots=[H100])
    assert spec.training.weight_dtype == spec.optimizer.state_dtype == "bfloat16"
    assert plan(spec, slots=[H100]).memory.total + ROOM < H100.memory_bytes
    check_job_spec(spec_of(speed._on_cpu(size, way)))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_each_small_job_is_legal(device: DeviceKind) -> None:
    jobs = [
        execution._spec(device, inputs, **check.arguments)
        for inputs in INPUTS.values()
        for check in STAGES["execution"]
    ]
    jobs += [layouts._spec(device, layout, **axes) for layout, axes in layouts.LAYOUTS.values()]
    here = Here(device, Path(), Path())
    jobs += [
        float8._spec(here, recipe, compiled=compiled)
        for recipe in RECIPES
        for compiled in (False, True)
    ]
    jobs += [fake_ranks._spec(here, layout) for layout in fake_ranks.LAYOUTS.values()]
    for spec in jobs:
        check_job_spec(spec)
    assert len(jobs) > 30


@pytest.mark.slow
def test_the_first_stage_passes_on_a_cpu(tmp_path: Path) -> None:
    assert main(["--to", str(tmp_path), "--stages", "start", "--device", "cpu"]) == 0
    statuses = {
        line["check"]: line["status"] for line in runner.read_lines(tmp_path / runner.LINES)[1:]
    }
    assert statuses == {
        "imports": "passed",
        "nccl": "skipped",
        "torchrun": "passed",
        "cuda_tests": "skipped",
    }


def test_the_tests_that_need_a_gpu_are_found_by_their_mark() -> None:
    files = files_with_cuda_tests(ROOT / "tests" / "trainer")
    marks = sum(path.read_text(encoding="utf-8").count("@pytest.mark.cuda\n") for path in files)
    assert marks >= CUDA_TESTS


# ---- the group that goes through the host --------------------------------------------------------


def _collectives() -> dict[str, list[float]]:
    from tools.gpu_check.staged_group import BACKEND, register

    register()
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(4.0) + 10 * rank
    found: dict[str, torch.Tensor] = {"all_reduce": mine.clone()}
    dist.all_reduce(found["all_reduce"])
    found["broadcast"] = mine.clone()
    dist.broadcast(found["broadcast"], src=1)
    found["all_gather"] = torch.empty(4 * size)
    dist.all_gather_into_tensor(found["all_gather"], mine)
    found["reduce_scatter"] = torch.empty(4 // size)
    dist.reduce_scatter_tensor(found["reduce_scatter"], mine)
    found["all_to_all"] = torch.empty(4)
    dist.all_to_all_single(found["all_to_all"], mine)
    found["received"] = torch.empty(4)
    works = [
        dist.isend(mine, (rank + 1) % size),
        dist.irecv(found["received"], (rank - 1) % size),
    ]
    for work in works:
        assert work is not None
        work.wait()
    assert mine.tolist() == [10.0 * rank + i for i in range(4)], "inputs stay as they are"
    return {name: tensor.tolist() for name, tensor in found.items()}


def test_collectives_over_the_host_are_those_of_any_group() -> None:
    first, second = [0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0]
    both = [10.0, 12.0, 14.0, 16.0]
    for rank, found in enumerate(run_ranks(2, _collectives, initialize=False)):
        half = slice(2 * rank, 2 * rank + 2)
        assert found == {
            "all_reduce": both,
            "broadcast": second,
            "all_gather": first + second,
            "reduce_scatter": both[half],
            "all_to_all": first[half] + second[half],
            "received": (second, first)[rank],
        }
