"""The comparison with torchtitan measures both trainers from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.against_torchtitan import TITAN as OPTIONS
from benchmarks.against_torchtitan import WAYS, Way, last_step, spec_of, speed, steps_in
from benchmarks.launch import Mark, launch_and_watch
from tests.examples.test_programs import NO_TITAN, PROGRAMS, TITAN
from trainyard.run.record_files import append_record
from trainyard.run.records import MetricRecord
from trainyard.spec.job import parse_job_spec

LOG = """
[titan] 2026-11-22 10:00:00,000 - root - INFO - Training starts at step 1
\x1b[31mstep:  1  \x1b[32mloss:  7.71  \x1b[35mmemory:  0.00GiB  \x1b[34mtps: 240\x1b[0m
\x1b[31mstep:  1  \x1b[32mloss:  7.71  \x1b[35mmemory:  0.00GiB  \x1b[34mtps: 240\x1b[0m
step:  5  loss:  7.02  grad_norm:  1.2  memory:  0.00GiB(0.00%)  tps: 1,080  tflops: 0.08  mfu: 1%
step: 10  loss:  6.02  grad_norm:  1.1  memory:  0.00GiB(0.00%)  tps:"""
BURN = "while time.process_time() < 0.3: pass"
STARTS_ONE_THAT_BURNS = f"""
import subprocess, sys, time
print("step 1", flush=True)
time.sleep(1)  # a first look that comes late takes nothing away from what is burnt
burn = "import time\\n{BURN}\\nprint('step 2', flush=True); time.sleep(60)"
subprocess.run([sys.executable, "-c", burn])
"""
ON_CPU = PROGRAMS / "torchtitan" / "on_cpu.py"
SHAPES = """
import json, runpy, sys
runpy.run_path(sys.argv[1])  # without a GPU it cannot be imported as it is
from torchtitan.config import ConfigManager
job = ConfigManager().parse_args(sys.argv[2:])
model, training, kept = job.model_spec.model, job.training, job.activation_checkpoint
shapes = [model.dim, len(model.layers), model.vocab_size, training.local_batch_size]
modes = [job.compile.enable, kept and type(kept).__qualname__]
print(json.dumps([*shapes, training.seq_len, *modes]))
"""


def test_the_last_complete_line_is_the_step_that_torchtitan_has_done() -> None:
    assert steps_in(LOG) == 5
    assert steps_in("") == 0


def test_only_our_lines_with_values_count(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    assert last_step(metrics) == 0
    for step, values in ((1, {"train/loss": 7.0}), (2, {})):
        append_record(metrics, MetricRecord(step=step, time=0.0, values=values, data_digest="0"))
    with metrics.open("a") as lines:
        lines.write('{"step": 3, "values": {"train/lo')
    assert last_step(metrics) == 1


def test_rates_begin_at_the_second_line() -> None:
    marks = [Mark(1, 9.0, 5.0), Mark(5, 10.0, 6.0), Mark(10, 11.0, 7.5), Mark(15, 12.0, 11.0)]
    found = speed(marks, 2, WAYS["eager"])
    tokens = 10 * 4 * 512
    assert (found.wall, found.processor, found.start) == (tokens / 2, 2 * tokens / 5, 9.0)
    with pytest.raises(RuntimeError, match="2 lines; take more steps"):
        speed(marks[:2], 2, WAYS["eager"])


def test_processor_time_is_that_of_all_that_a_launch_started(tmp_path: Path) -> None:
    def done(printed: str) -> int:
        return printed.count("step")

    words = [sys.executable, "-c", STARTS_ONE_THAT_BURNS]
    marks = launch_and_watch(words, tmp_path, os.environ, done=done, until=2)
    assert [mark.step for mark in marks] == [1, 2]
    assert 0.25 <= marks[1].processor_seconds - marks[0].processor_seconds <= 1.0
    assert marks[1].seconds > marks[0].seconds > 0


def test_a_launch_that_ends_early_raises_with_its_output(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "print('no GPU'); raise SystemExit(3)"]
    with pytest.raises(RuntimeError, match=r"(?s)ended with 3:.*no GPU"):
        launch_and_watch(words, tmp_path, os.environ, done=lambda _: 0, until=1)


def test_our_job_is_a_legal_one_of_torchtitans_shapes() -> None:
    job = parse_job_spec(spec_of(WAYS["eager"], 2, steps=2, log_every=1))
    assert (job.training.seq_len, job.training.global_batch_size, job.training.steps) == (512, 8, 2)
    assert (job.model.vocab_size, job.resources.world_size) == (2048, 2)


@pytest.mark.slow
@pytest.mark.skipif(TITAN is None, reason=NO_TITAN)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_torchtitan_reads_the_shapes_of_our_job(way: Way, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(TITAN), "-c", SHAPES, str(ON_CPU), *OPTIONS, *way.titan],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    job = parse_job_spec(spec_of(way, 1, steps=2, log_every=1))
    model, training = job.architecture, job.training
    shapes = [model.dim, model.n_layers, model.vocab_size, training.micro_batch_size]
    kept = {"none": None, "full": "FullAC.Config", "memory_budget": "MemoryBudgetAC.Config"}
    assert json.loads(done.stdout.splitlines()[-1]) == [
        *(*shapes, training.seq_len, job.compile.enabled is True),
        kept[job.activation_checkpoint.mode],
    ]
