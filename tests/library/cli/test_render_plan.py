"""The text of a plan on the command line."""

from io import StringIO

import pytest
from rich.console import Console

from trainyard.cli.render_plan import draw_plan
from trainyard.planner.plan import plan, plan_job
from trainyard.planner.speed.prediction import Predictor
from trainyard.planner.speed.quantities import NodeKind
from trainyard.planner.speed.rates import Accuracy, sheet_rates
from trainyard.spec.job import parse_job_spec


def test_a_pipeline_shows_its_runs_and_their_empty_microbatches() -> None:
    spec = parse_job_spec(
        {
            "model": {"n_layers": 8},
            "training": {"global_batch_size": 13, "micro_batch_size": 1},
            "parallelism": {"pp": 4, "pp_schedule": "InterleavedZeroBubble"},
            "resources": {"world_size": 4},
        }
    )
    console = Console(file=StringIO(), width=200)
    console.print(draw_plan(plan(spec)))
    assert isinstance(console.file, StringIO)
    told = console.file.getvalue()
    assert "stages of 1+1+1+1+1+1+1+1 layers, 2 runs of 7 micro-batches (1 empty)," in told


def test_a_plan_of_a_program_lists_its_layouts_by_number_of_slots() -> None:
    layouts = [{"dp_shard": 4}, {"dp_shard": 2}, {"dp_shard": 2, "tp": 2}]
    program = {"command": ["train.py"], "resume": "any_world_size", "layouts": layouts}
    spec = parse_job_spec({"program": program, "resources": {"world_size": 4}})
    console = Console(file=StringIO(), width=200)
    console.print(draw_plan(plan_job(spec)))
    assert isinstance(console.file, StringIO)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert lines[0] == "FSDP 4 on 4 slots, program"
    start = lines.index("3 layouts")
    assert lines[start + 1 :] == ["2 slots FSDP 2", "4 slots FSDP 4 (this one), FSDP 2 x TP 2"]


def test_a_plan_lists_what_auto_stands_for() -> None:
    console = Console(file=StringIO(), width=300)
    console.print(draw_plan(plan(parse_job_spec({"resources": {"device": "cuda"}}))))
    assert isinstance(console.file, StringIO)
    told = console.file.getvalue()
    assert "auto on cuda" in told
    assert "training.log_every_steps=10, compile.enabled=true" in told


@pytest.mark.parametrize("runs", [0, 12])
def test_layouts_are_ranked_with_the_accuracy_of_the_predictions(runs: int) -> None:
    calibration = sheet_rates("cpu", "a processor")
    assert calibration is not None
    if runs:
        accuracy = Accuracy(
            step_median=0.04,
            step_p95=0.11,
            memory_median=0.02,
            memory_p95=0.05,
            fits_judged=11,
            fits_wrong=1,
        )
        calibration = calibration.model_copy(update={"runs": runs, "accuracy": accuracy})
    spec = parse_job_spec({"resources": {"device": "cpu", "world_size": 4}})
    predictor = Predictor(NodeKind("cpu", "a processor", 4, 4), calibration)
    console = Console(file=StringIO(), width=200)
    console.print(draw_plan(plan(spec, predictor=predictor)))
    assert isinstance(console.file, StringIO)
    told = console.file.getvalue()
    assert "Fastest of 14 legal layouts, predicted" in told
    (own,) = [line for line in told.splitlines() if "this one" in line]
    assert own.startswith("  FSDP 4")
    if runs:
        assert (
            "Learned from 12 runs on a processor; step time off by 4 % in the median, 11 % at p95; "
            "memory by 2 % and 5 %; 1 of 11 runs predicted to fit did not."
        ) in told
    else:
        assert "From the data sheet of a processor: no run has ended on it yet" in told
