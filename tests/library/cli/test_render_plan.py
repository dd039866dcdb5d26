"""The text of a plan on the command line."""

from io import StringIO

from rich.console import Console

from trainyard.cli.render_plan import draw_plan
from trainyard.planner.plan import plan
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


def test_a_plan_lists_what_auto_stands_for() -> None:
    console = Console(file=StringIO(), width=300)
    console.print(draw_plan(plan(parse_job_spec({"resources": {"device": "cuda"}}))))
    assert isinstance(console.file, StringIO)
    told = console.file.getvalue()
    assert "auto on cuda" in told
    assert "training.log_every_steps=10, compile.enabled=true" in told
