"""Trainer against a bare loop of the same model: the cost of data, digests, metrics and control.

Both run in one process on one thread, in alternating blocks, so that other load on the machine
affects both alike. The bare loop is that of a simple script: the plain model, existing random
tokens, AdamW, clipping.

    python -m benchmarks.trainer_overhead [--blocks 40] [--steps-per-block 1]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.bare_llama import BareLlama
from benchmarks.report import emit
from trainer.loop.train import train
from trainer.metrics.run_writer import RunWriter
from trainer.run import open_run
from trainyard.run.directory import RunDirectory
from trainyard.spec.job import JobSpec, parse_job_spec

WARMUP_BLOCKS = 2
TARGET = 0.03
SPEC = {
    "name": "overhead",
    "model": {"dim": 256, "n_layers": 6, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 1024},
    "data": {"max_tokens": 2_000_000},
    "training": {"seq_len": 512, "global_batch_size": 4, "micro_batch_size": 4},
    "lr_schedule": {"warmup_steps": 0},
    "checkpoint": {"interval_steps": 0, "preflight": False},
    "resources": {"device": "cpu"},
}


class BareLoop:
    """A model of the same shape, made of torch's own parts, in a plain loop."""

    def __init__(self, spec: JobSpec) -> None:
        self.model = BareLlama(spec.architecture, spec.training.seq_len)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self._max_norm = spec.training.max_grad_norm or math.inf
        shape = (spec.training.global_batch_size, spec.training.seq_len + 1)
        self._tokens: Tensor = torch.randint(256, shape)

    def step(self) -> float:
        """Do one optimizer step and return the loss."""
        loss: Tensor = self.model(self._tokens[:, :-1], self._tokens[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._max_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.item()


Seconds = tuple[float, float]  # wall clock, processor time


class AlternatingBlocks:
    """Times the trainer between its hooks, and runs a block of the bare loop in each hook."""

    def __init__(self, bare: BareLoop, steps_per_block: int) -> None:
        self._bare = bare
        self._steps = steps_per_block
        self._started: Seconds | None = None
        self.trainer: list[Seconds] = []
        self.bare: list[Seconds] = []

    def after_step(self, step: int) -> None:
        """End the trainer's block if it is complete, and run one of the bare loop."""
        if step % self._steps:
            return
        ended = _now()
        if self._started is not None:
            self.trainer.append(_since(self._started, ended))
        for _ in range(self._steps):
            self._bare.step()
        self._started = _now()
        if self.trainer:
            self.bare.append(_since(ended, self._started))


def measure(blocks: int, steps_per_block: int) -> bool:
    """Print the overhead with its 95 % confidence interval, and the machine.

    Processor time includes the trainer's own threads, and other load hardly changes it.
    """
    torch.set_num_threads(1)
    steps = (blocks + WARMUP_BLOCKS + 1) * steps_per_block
    spec = SPEC | {"training": {**SPEC["training"], "steps": steps}}  # type: ignore[dict-item]
    bare = BareLoop(parse_job_spec(spec))
    timed = AlternatingBlocks(bare, steps_per_block)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "spec.json").write_text(json.dumps(spec))
        run = open_run(folder, world_size=1, roots={})
        recorder = RunWriter(RunDirectory(folder), rank=0, local_rank=0)
        train(run, recorder, after_step=timed.after_step)
    del timed.trainer[:WARMUP_BLOCKS], timed.bare[:WARMUP_BLOCKS]
    passed = True
    for clock, kind in enumerate(("wall", "processor")):
        overhead = _overhead([t[clock] for t in timed.trainer], [b[clock] for b in timed.bare])
        passed &= emit(
            f"trainer_overhead_{kind}_time",
            figure=overhead["low_95"],
            unit="share of the bare loop's time (lower 95 % bound)",
            target=TARGET,
            at_least=False,
            packages=("numpy", "pydantic", "torch"),
            mean=overhead["mean"],
            high_95=overhead["high_95"],
            blocks=len(timed.bare),
            steps_per_block=steps_per_block,
            bare_step_seconds=round(
                statistics.median(b[clock] for b in timed.bare) / steps_per_block, 4
            ),
            parameters=sum(p.numel() for p in bare.model.parameters()),
        )
    return passed


def _overhead(trainer: list[float], bare: list[float]) -> dict[str, float]:
    """Return the geometric mean of the ratios of neighbouring blocks, less one, and its bounds."""
    ratios = [math.log(t / b) for t, b in zip(trainer, bare, strict=True)]
    mean = statistics.fmean(ratios)
    margin = 1.96 * statistics.stdev(ratios) / math.sqrt(len(ratios))
    bounds = {"low_95": mean - margin, "mean": mean, "high_95": mean + margin}
    return {name: round(math.expm1(value), 4) for name, value in bounds.items()}


def _now() -> Seconds:
    return time.perf_counter(), time.process_time()


def _since(started: Seconds, ended: Seconds) -> Seconds:
    return ended[0] - started[0], ended[1] - started[1]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--steps-per-block", type=int, default=1)
    arguments = parser.parse_args()
    return 0 if measure(arguments.blocks, arguments.steps_per_block) else 1


if __name__ == "__main__":
    sys.exit(main())
