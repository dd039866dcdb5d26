"""The comparison of strategies: what it lists, what it writes, and a short one for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.strategies.table import Measured, NotRun, Results, picture, table
from trainyard.base.problems import SpecError
from trainyard.planner.plan import plan
from trainyard.prove.strategies import strategies
from trainyard.spec.job import parse_job_spec
from trainyard.training.known_devices import Slot

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
CPU = [Slot("cpu", "CPU", 2**34)]
H100 = [Slot("cuda", "NVIDIA H100 80GB HBM3", 80 * 10**9)]


def results() -> Results:
    losses = {"one rank": [5.5, 4.0, 3.25], "2D": [5.5, 4.01, 3.251]}
    measured = [
        Measured(
            name=name,
            layout="1 rank" if name == "one rank" else "FSDP 2 x TP 2",
            ranks=1 if name == "one rank" else 4,
            tokens_per_second=1234.5,
            peak_gib=0.35,
            tensors_mib=9.8,
            sent_bytes={} if name == "one rank" else {"all_gather": 3 * 2**20, "all_reduce": 6},
            losses=course,
            load=1.5,
        )
        for name, course in losses.items()
    ]
    return Results(
        date="2026-01-31",
        device="CPU",
        machine={"cpus": 2, "processor": "x86_64", "memory_gib": 8.0, "load": 1.0},
        versions={"torch": "2.13.0"},
        model="debug model, 16 sequences a step",
        steps=3,
        passed=True,
        measured=measured,
        not_run=[NotRun("2D async", "no GPU")],
    )


def test_the_table_has_a_row_for_each_and_the_reason_of_what_did_not_run() -> None:
    lines = table(results()).splitlines()
    assert lines[2] == "| one rank | 1 rank | 1,234 | 0.35 | 9.8 | 0 | 0 | 3.2500 | 1.5 |"
    assert lines[3] == "| 2D | FSDP 2 x TP 2 | 1,234 | 0.35 | 9.8 | 3.00 | < 0.01 | 3.2510 | 1.5 |"
    assert "2D async did not run here: no GPU" in lines
    assert "torch 2.13.0" in lines[-1]


def test_the_picture_has_a_line_and_a_legend_for_each() -> None:
    tree = ElementTree.fromstring(picture(results()))
    lines = [p for p in tree.iter(f"{SVG}path") if p.get("fill") == "none"]
    assert len(lines) == 2
    assert lines[0].get("d") != lines[1].get("d")
    assert {"one rank", "2D"} <= {text.text for text in tree.iter(f"{SVG}text")}


def test_the_planner_takes_all_strategies_but_async_tensor_parallelism_on_a_cpu() -> None:
    every = strategies(8, device="cpu")
    missing = {each.name: each.missing for each in every if each.missing}
    assert missing == {"2D async": "needs CUDA with symmetric memory"}
    for each in every:
        spec = parse_job_spec(each.with_steps(10))
        if each.missing:
            with pytest.raises(SpecError, match=each.missing):
                plan(spec, slots=CPU)
        else:
            plan(spec, slots=CPU)


@pytest.mark.parametrize("devices", [1, 2, 4, 8, 32])
def test_gpus_get_every_strategy_that_they_are_enough_for(devices: int) -> None:
    for strategy in strategies(devices, device="cuda"):
        spec = parse_job_spec(strategy.with_steps(10))
        enough = spec.resources.world_size <= devices
        assert (strategy.missing is None) == enough, strategy.name
        assert not enough or plan(spec, slots=H100).fits, strategy.name
    assert {"FSDP", "compile", "float8"} <= {
        s.name for s in strategies(devices, device="cuda") if s.missing is None
    }


def test_the_page_shows_the_measured_table_and_picture() -> None:
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    kept = (ROOT / "benchmarks/results/strategies-cpu.md").read_text(encoding="utf-8")
    assert kept in page
    assert "../benchmarks/results/strategies-cpu.svg" in page
    found = json.loads((ROOT / "benchmarks/results/strategies-cpu.json").read_text("utf-8"))
    assert found["passed"]
    assert table(Results.of_json(found)) == kept


@pytest.mark.slow
def test_two_strategies_run_and_are_written_down(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.strategies", "one rank", "FSDP", "2D async"]
    done = subprocess.run(
        [*command, "--steps=4", f"--to={tmp_path}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    figures = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [figure["layout"] for figure in figures] == ["1 rank", "FSDP 4"]
    assert all(figure["passed"] for figure in figures)
    found = json.loads((tmp_path / "strategies-cpu.json").read_text(encoding="utf-8"))
    one, fsdp = found["measured"]
    assert one["losses"] == pytest.approx(fsdp["losses"], rel=1e-4)
    assert one["losses"][-1] < one["losses"][0]
    assert not one["sent_bytes"]
    assert fsdp["sent_bytes"]["all_gather"] > 0
    assert [refused["name"] for refused in found["not_run"]] == ["2D async"]
    kept = (tmp_path / "strategies-cpu.md").read_text(encoding="utf-8")
    assert kept in done.stdout
    assert kept == table(Results.of_json(found))
    assert (tmp_path / "strategies-cpu.svg").read_text(encoding="utf-8") == picture(
        Results.of_json(found)
    )
