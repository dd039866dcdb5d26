"""What is written of each step: its digest always, and now and then what was measured."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.distributed import Ranks
from trainer.metrics.loss_guard import LossGuard, Verdict
from trainer.metrics.measure import (
    HardwareUse,
    compile_seconds,
    device_name,
    largest_of_ranks,
    memory,
)
from trainer.metrics.run_writer import RunWriter
from trainer.metrics.step_log import StepLog
from trainer.metrics.tensorboard import TensorBoard
from trainer.metrics.timers import StepTimers
from trainer.parallel.mesh import Place
from trainer.run import Run
from trainyard.protocol.manifest import TrainState
from trainyard.spec.auto import explicit
from trainyard.training.batch_partition import BatchPartition

logger = logging.getLogger("trainer")


@dataclass(frozen=True)
class StepResult:
    """What a step leaves behind; the tensors are on the device, and not waited for."""

    loss: torch.Tensor
    """This rank's share of the mean loss over the tokens of the global batch, float32 `[]`."""
    grad_norm: torch.Tensor
    """Global L2 norm of the gradient before clipping, `[]`."""
    hashes: list[int]
    """Hash of each sequence that this rank trained on, in the order in which it ran them."""


class MetricsLogger:
    """The lines of `metrics.jsonl`; every rank calls every method.

    Writing values is the one thing between two steps that waits for the device.
    """

    def __init__(self, run: Run, ranks: Ranks, recorder: RunWriter, *, start: TrainState) -> None:
        """Begin with the counters before the first step of the attempt."""
        self._spec = run.spec
        self._ranks = ranks
        self._log_every_steps = explicit(run.spec.training.log_every_steps)
        self._first_step = start.step + 1
        self._guard = LossGuard(run.spec, start)
        self._log = StepLog(
            partition=run.partition, layout=run.attempt.layout, ranks=ranks, recorder=recorder
        )
        self._losses = Losses(run, ranks)
        self._use = HardwareUse(run.spec, device_name(ranks.device))
        self._compile_seconds = 0.0
        self._kept: dict[str, float] = {}
        wanted = run.spec.training.tensorboard and ranks.leads
        self._tensorboard = TensorBoard(Path(run.directory.tensorboard)) if wanted else None
        self.pace = StepTimers(
            tokens_per_step=run.spec.tokens_per_step,
            devices=ranks.world_size,
            device=ranks.device,
        )
        """Times of steps, and of what lies between them."""

    def keep(self, values: dict[str, float]) -> None:
        """Keep values, of a save or a validation, for the next line that holds any."""
        self._kept |= values

    def step_done(self, state: TrainState, result: StepResult, *, write_values: bool) -> None:
        """Take in a completed step, and write what waits when it is time to.

        Args:
            state: the counters after the step.
            result: what the step measured.
            write_values: whether its values are to be written at once; they are at every
                `log_every_steps`, at the first step of the attempt and the last of the job anyway.

        Raises:
            GuardError: on every rank, after the line with the value has been written.
        """
        self._log.add(state.step, result.hashes)
        if write_values or self._is_logged(state.step):
            self._write_values(state, result)
        elif self._log.full:
            self._log.write({})

    def close(self) -> None:
        """Close what is open."""
        if self._tensorboard:
            self._tensorboard.close()

    def _is_logged(self, step: int) -> bool:
        steps, every = self._spec.training.steps, self._log_every_steps
        return step in (self._first_step, steps) or step % every == 0

    def _write_values(self, state: TrainState, result: StepResult) -> None:
        measured = self._losses(result)
        performance, verdict = self._agree(self._guard.judge(measured))
        values = measured | {
            "train/lr": self._spec.schedule.rate(state.step),
            "train/tokens": float(state.tokens),
            "train/sequences": float(state.data.consumed),
            **performance,
            **self._kept,
        }
        self._kept = {}
        self._log.write(values)
        if self._tensorboard:
            self._tensorboard.write(state.step, values)
        logger.info(
            "step %d/%d  loss %.4f  grad norm %.3f  %.0f tokens/s",
            state.step,
            self._spec.training.steps,
            values["train/loss"],
            values["train/grad_norm"],
            values["perf/tokens_per_second_per_device"] * self._ranks.world_size,
        )
        if verdict != Verdict.GOOD:
            # The first rank to end takes the others with it: rank 0 must have written by then.
            dist.barrier(group=self._ranks.cpu_group)
        self._guard.act(verdict, measured, state)

    def _agree(self, verdict: Verdict) -> tuple[dict[str, float], Verdict]:
        """Return times of this rank, the largest of all ranks of what may differ, and the verdict.

        One collective does for all of it. The worst verdict of any rank is that of all.
        """
        pace = self.pace.values()
        compiled, self._compile_seconds = self._compile_seconds, compile_seconds()
        own = {name: pace[name] for name in ("perf/data_seconds", "perf/data_share")}
        own |= memory(self._ranks.device)
        own["compile/seconds"] = self._compile_seconds - compiled
        own["verdict"] = float(verdict)
        largest = largest_of_ranks(own, self._ranks.cpu_group)
        verdict = Verdict(int(largest.pop("verdict")))
        if not largest["compile/seconds"]:
            del largest["compile/seconds"]
        rate = pace["perf/compute_tokens_per_second_per_device"]
        return pace | self._use.values(rate) | largest, verdict


class Losses:
    """Brings the loss together from all ranks, and fetches it: one collective, one copy."""

    def __init__(self, run: Run, ranks: Ranks) -> None:
        self._layout = run.attempt.layout
        self._place = Place.of(ranks.rank, self._layout)
        self._tokens_share_D = torch.tensor(
            [share_of(run.partition, dp_rank) for dp_rank in range(self._layout.dp)],
            device=ranks.device,
        )

    def __call__(self, result: StepResult) -> dict[str, float]:
        """Return mean and largest loss and the gradient norm; the host waits for them."""
        loss_D = torch.zeros_like(self._tokens_share_D)
        # Tensor-parallel ranks have the same loss, all of it; the others each their part.
        loss_D[self._place.dp] = result.loss / self._layout.tp
        dist.all_reduce(loss_D)
        means_D = loss_D / self._tokens_share_D
        grad_norm = result.grad_norm.to(loss_D.device)
        fetched = torch.stack([loss_D.sum(), means_D.max(), grad_norm]).tolist()
        return dict(zip(("train/loss", "train/loss_max", "train/grad_norm"), fetched, strict=True))


def share_of(partition: BatchPartition, dp_rank: int) -> float:
    """Return the share of the global batch's sequences that a data-parallel rank runs."""
    return sum(map(len, partition.for_rank(dp_rank))) / partition.global_batch_size
