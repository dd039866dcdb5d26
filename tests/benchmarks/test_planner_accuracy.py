"""The benchmark of the planner's predictions: its configurations, its figures, a small run."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.planner_accuracy.__main__ import LEAST, main
from benchmarks.planner_accuracy.configurations import Configuration, configurations
from benchmarks.planner_accuracy.evaluate import evaluate, measured_run, this_node
from benchmarks.planner_accuracy.measure import Measurement
from trainyard.planner.memory import estimate_memory
from trainyard.planner.speed.calibrate import predicted_bytes, predicted_seconds
from trainyard.planner.speed.rates import sheet_rates
from trainyard.planner.speed.step_work import step_work
from trainyard.spec.rules import check_job_spec


def as_predicted(configuration: Configuration, factor: float = 1.0) -> Measurement:
    """Return what a machine would measure that is `factor` times as slow as the data sheet."""
    spec, layout = configuration.spec, configuration.spec.layout()
    partition, sheet = spec.batch_partition(layout), sheet_rates("cpu", "")
    assert sheet is not None
    seconds = factor * predicted_seconds(
        sheet, step_work(spec, layout, partition=partition, node=this_node())
    )
    peak = round(predicted_bytes(sheet, estimate_memory(spec, layout, partition)))
    return Measurement(seconds, seconds, seconds, 3, tensors=peak, resident=peak)


def test_there_are_enough_legal_configurations_of_different_names() -> None:
    every = configurations()
    assert len({each.name for each in every}) == len(every) >= LEAST
    for each in every:
        check_job_spec(each.spec)


def test_exact_runs_are_predicted_and_ranked_exactly() -> None:
    runs = {c: measured_run(c, as_predicted(c, 2.5), resident=True) for c in configurations()}
    errors = evaluate(runs, resident=True, splits=4)
    assert errors.step_p95 < 0.02
    assert errors.memory_p95 < 0.02
    assert errors.order > 0.9
    assert errors.pairs > 50
    assert errors.fits > 100
    assert errors.false_fits == 0


def test_runs_without_any_order_are_not_predicted() -> None:
    every = configurations()
    runs = {
        c: measured_run(c, as_predicted(other), resident=True)
        for c, other in zip(every, random.Random(1).sample(every, len(every)), strict=True)
    }
    assert evaluate(runs, resident=True, splits=2).order < 0.5


def test_lines_of_a_former_run_are_judged_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"benchmark": "planner_accuracy_configuration", "configuration": c.name}
        | asdict(as_predicted(c))
        for c in configurations()
    ]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    main(["--read", str(path), "--splits", "2"])
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_unit = {line["unit"]: line for line in printed}
    assert by_unit["Kendall's tau of the layouts of a job"]["passed"]
    assert by_unit["p95 error of the step time"]["figure"] < 0.02
    assert all(line["configurations"] == len(lines) for line in printed)


@pytest.mark.slow
def test_a_small_run_measures_each_configuration() -> None:
    # In a process of its own: each has one fork server, and other tests load other modules.
    command = [sys.executable, "-m", "benchmarks.planner_accuracy", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    measured = [line for line in printed if "configuration" in line]
    assert [line["configuration"] for line in measured] == [
        each.name for each in configurations(few=True)
    ]
    for line in measured:
        assert 0 < line["shortest"] <= line["wall"]
        assert 0 < line["tensors"] < line["resident"]
