"""Writes `metrics.jsonl`: data digests of all steps, and values of logged steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from trainer.data.digest import in_global_order, step_digest
from trainer.distributed import Ranks
from trainer.metrics.collective_waits import CollectiveWaits
from trainer.metrics.gather import gather_on_rank_0
from trainer.metrics.loss_guard import LossGuard, Verdict
from trainer.metrics.measure import (
    HardwareUse,
    compile_seconds,
    device_name,
    largest_of_ranks,
    memory,
)
from trainer.metrics.run_writer import RunWriter
from trainer.metrics.stragglers import (
    RankSeconds,
    StragglerWatch,
    without_shared_wait,
)
from trainer.metrics.timers import StepTimers
from trainer.parallel.mesh import MeshCoordinates
from trainer.process import StepCollector
from trainer.run import TrainerRun
from trainyard.protocol.manifest import TrainState
from trainyard.run.directory import RunDirectory
from trainyard.run.record_files import append_record
from trainyard.run.records import MetricRecord
from trainyard.spec.auto import explicit
from trainyard.spec.layout import Layout
from trainyard.training.batch_partition import BatchPartition

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

logger = logging.getLogger("trainer")

FLUSH_STEPS = 256
"""Maximum number of steps that wait to be written because none of them has values. A kill of the
process loses the digests of the waiting steps.
"""
RANK_TIMES_SECONDS = 30.0
"""Interval, in seconds, between events with the times of all ranks; a new or a recovered straggler
causes one earlier."""
MICROSECOND = 1e-6


@dataclass(frozen=True)
class StepMetrics:
    """Measurements of a step; the tensors are on the device and may still be pending."""

    loss: torch.Tensor
    """This rank's part of the mean loss over the tokens of the global batch, float32 `[]`."""
    grad_norm: torch.Tensor
    """Global L2 norm of the gradient before clipping, `[]`."""
    hashes: list[int]
    """Hashes of the sequences that this rank was trained on, in the order of training."""


class MetricsLogger:
    """Measures, checks and writes the metrics of steps; every rank calls every method.

    Between steps, only a fetch of values waits for the device.
    """

    def __init__(
        self,
        run: TrainerRun,
        ranks: Ranks,
        writer: RunWriter,
        *,
        start: TrainState,
        collector: StepCollector,
        waits: CollectiveWaits | None = None,
    ) -> None:
        """Start with the counters before the attempt's first step.

        Args:
            run: the attempt.
            ranks: all ranks.
            writer: writes the events about stragglers.
            start: counters before the first step.
            collector: runs this rank's garbage collections.
            waits: measures this rank's time in collectives; by default, the logger counts this time
                as 0.
        """
        self._spec = run.spec
        self._ranks = ranks
        self._directory = run.directory
        self._log_every_steps = explicit(run.spec.training.log_every_steps)
        self._first_step = start.step + 1
        self._guard = LossGuard(run.spec, start)
        self._log = StepLog(run.directory, run.partition, layout=run.attempt.layout, ranks=ranks)
        self._losses = Losses(run, ranks)
        self._use = HardwareUse(run.spec, device_name(ranks.device))
        self._rank_comparison = RankComparison(run.attempt.layout, ranks, writer)
        self._comparison_due = False  # equal on all ranks, because a line has all times or none
        self._compile_seconds = 0.0
        self._collector = collector
        self._gc_seconds = 0.0
        self._kept: dict[str, float] = {}
        self._tensorboard: SummaryWriter | None = None
        if run.spec.training.tensorboard and ranks.leads:
            # Imported here, because the import takes a second and `training.tensorboard` is off by
            # default.
            from torch.utils.tensorboard.writer import SummaryWriter

            self._tensorboard = SummaryWriter(str(run.directory.tensorboard))
        self.timers = StepTimers(
            tokens_per_step=run.spec.tokens_per_step,
            devices=ranks.world_size,
            device=ranks.device,
            waits=waits,
        )
        """Times of steps, data and pauses."""

    def keep(self, metrics: dict[str, float]) -> None:
        """Keep metrics of a save or a validation for the next step with values."""
        self._kept |= metrics

    def step_done(self, state: TrainState, metrics: StepMetrics, *, write_values: bool) -> None:
        """Add a completed step; if its values are written, write all waiting steps too.

        Args:
            state: counters after the step.
            metrics: measurements of the step.
            write_values: whether to write values at this step in any case. Values are also written
                every `log_every_steps`, at the attempt's first step and at the job's last step.

        Raises:
            GuardError: the step is bad. Every rank raises this error, after the step's record is
                written.
        """
        self._log.add(state.step, metrics.hashes)
        logged = state.step in (self._first_step, self._spec.training.steps)
        if write_values or logged or state.step % self._log_every_steps == 0:
            self._write_values(state, metrics)
        elif self._log.full:
            self._log.gather()
            self._log.write({})

    def write_late(self, step: int, metrics: dict[str, float]) -> None:
        """Write metrics of a step whose record is already written."""
        if self._ranks.leads:
            late = MetricRecord(step=step, time=time.time(), values=metrics)
            append_record(self._directory.metrics, late)
            self._show(step, metrics)

    def close(self) -> None:
        """Close the TensorBoard files."""
        if self._tensorboard:
            self._tensorboard.close()

    def _write_values(self, state: TrainState, step_metrics: StepMetrics) -> None:
        losses = self._losses(step_metrics)
        times = self._own_times()
        performance, verdict = self._agree(self._guard.judge(losses))
        metrics = losses | {
            "train/lr": self._spec.schedule.rate(state.step),
            "train/tokens": float(state.tokens),
            "train/sequences": float(state.data.consumed),
            **performance,
            **self._kept,
        }
        self._kept = {}
        by_rank = self._log.gather(times)
        if "compile/seconds" in performance or state.step == self._first_step:
            # Ranks compile at different speeds; that must not make a rank a straggler.
            self.timers.restart_comparison()
        elif by_rank:
            metrics |= self._rank_comparison.add(by_rank)
        self._log.write(metrics)
        self._show(state.step, metrics)
        logger.info(
            "step %d/%d  loss %.4f  grad norm %.3f  %.0f tokens/s",
            state.step,
            self._spec.training.steps,
            metrics["train/loss"],
            metrics["train/grad_norm"],
            metrics["perf/tokens_per_second_per_device"] * self._ranks.world_size,
        )
        if verdict != Verdict.GOOD:
            # torchrun kills all ranks after the first failure, so other ranks must fail only after
            # rank 0's write.
            dist.barrier(group=self._ranks.cpu_group)
        self._guard.act(verdict, losses, state)

    def _show(self, step: int, metrics: dict[str, float]) -> None:
        """Write metrics for TensorBoard, if the job enables TensorBoard."""
        if self._tensorboard:
            for name, value in metrics.items():
                self._tensorboard.add_scalar(name, value, step)
            self._tensorboard.flush()  # a killed run does not close its files

    def _own_times(self) -> RankSeconds | None:
        """Return this rank's times since the last comparison, if a comparison is due."""
        if not self._comparison_due:
            return None
        return self.timers.of_rank()

    def _agree(self, verdict: Verdict) -> tuple[dict[str, float], Verdict]:
        """Return the metrics of a logged line, and the worst verdict of all ranks.

        Some metrics are maxima over all ranks, the others are values of this rank. One collective
        transfers the values of all ranks.
        """
        pace = self.timers.values()
        compiled, self._compile_seconds = self._compile_seconds, compile_seconds()
        own = {name: pace[name] for name in ("perf/data_seconds", "perf/data_share")}
        own |= memory(self._ranks.device)
        own["compile/seconds"] = self._compile_seconds - compiled
        collected, self._gc_seconds = self._gc_seconds, self._collector.seconds
        own["gc/seconds"] = self._gc_seconds - collected
        own["verdict"] = float(verdict)
        own["comparison due"] = float(self.timers.comparable)
        largest = largest_of_ranks(own, self._ranks.cpu_group)
        verdict = Verdict(int(largest.pop("verdict")))
        self._comparison_due = bool(largest.pop("comparison due")) and self._ranks.world_size > 1
        for name in ("compile/seconds", "gc/seconds"):
            if not largest[name]:
                del largest[name]
        rate = pace["perf/compute_tokens_per_second_per_device"]
        return pace | self._use.values(rate) | largest, verdict


@dataclass(frozen=True)
class _Step:
    step: int
    time: float
    hashes: list[int]


class StepLog:
    """Completed steps that are not yet in `metrics.jsonl`; every rank calls every method."""

    def __init__(
        self, directory: RunDirectory, partition: BatchPartition, *, layout: Layout, ranks: Ranks
    ) -> None:
        self._directory = directory
        self._partition = partition
        self._ranks = ranks
        self._steps: list[_Step] = []
        # Ranks with the same data-parallel rank run the same sequences; the lowest of them sends
        # the hashes.
        by_dp_rank = {
            MeshCoordinates.of(rank, layout).dp: rank for rank in reversed(range(layout.world_size))
        }
        self._sources = [by_dp_rank[rank] for rank in range(layout.dp)]
        self._digests: list[str] = []

    @property
    def full(self) -> bool:
        """Whether the number of waiting steps requires a write, even without values."""
        return len(self._steps) >= FLUSH_STEPS

    def add(self, step: int, hashes: list[int]) -> None:
        """Keep a completed step with the hashes of this rank's sequences."""
        self._steps.append(_Step(step, time.time(), hashes))

    def gather(self, times: RankSeconds | None = None) -> list[RankSeconds]:
        """Collect the results of all ranks for the waiting steps, along one tree of messages.

        Args:
            times: this rank's times since the last comparison; given on all ranks or on none.

        Returns:
            On global rank 0, the times of all ranks. Empty on other ranks, and if no times are
            given.
        """
        slots = self._partition.rounds * self._partition.micro_batch_size
        mine = torch.zeros(len(self._steps), slots, dtype=torch.int64)
        for row, done in zip(mine, self._steps, strict=True):
            row[: len(done.hashes)] = torch.tensor(done.hashes, dtype=torch.int64)
        # Send the times with the hashes, as whole microseconds. A separate collective would cost
        # every rank another round trip.
        numbers = [] if times is None else [round(seconds / MICROSECOND) for seconds in times]
        flat = torch.cat([mine.flatten(), torch.tensor(numbers, dtype=torch.int64)])
        gathered = gather_on_rank_0(flat, self._ranks.cpu_group)
        if gathered is None:
            return []
        hashes = mine.numel()
        by_rank = [gathered[source][:hashes].view_as(mine).tolist() for source in self._sources]
        self._digests = [
            step_digest(in_global_order(self._partition, [rows[index] for rows in by_rank]))
            for index in range(len(self._steps))
        ]
        if times is None:
            return []
        return [
            RankSeconds(*(microseconds * MICROSECOND for microseconds in one[hashes:].tolist()))
            for one in gathered
        ]

    def write(self, metrics: dict[str, float]) -> None:
        """Append a record for each gathered step; `metrics` belong to the last step.

        Raises:
            OSError: on global rank 0, a record could not be appended completely.
        """
        # Only global rank 0 has digests, so the other ranks append nothing.
        for done, digest in zip(self._steps, self._digests, strict=False):
            values = metrics if done is self._steps[-1] else {}
            append_record(
                self._directory.metrics,
                MetricRecord(step=done.step, time=done.time, values=values, data_digest=digest),
            )
        self._steps.clear()
        self._digests = []


class RankComparison:
    """On global rank 0: finds stragglers, and writes events.

    Some events report a straggler. The other events report the times of all ranks.
    """

    def __init__(self, layout: Layout, ranks: Ranks, writer: RunWriter) -> None:
        # Ranks in the same pipeline stage do the same work.
        self._roles = [MeshCoordinates.of(rank, layout).pp for rank in range(layout.world_size)]
        self._overlaps = ranks.device.type == "cuda"
        self._watch = StragglerWatch(self._roles)
        self._writer = writer
        self._written_at = -RANK_TIMES_SECONDS

    def add(self, by_rank: Sequence[RankSeconds]) -> dict[str, float]:
        """Judge the times of one logged line; return the metrics for this line."""
        times = without_shared_wait(by_rank, self._roles) if self._overlaps else by_rank
        found, gone = self._watch.add(times)
        for straggler in found:
            cost = f"{straggler.factor:.1f} x its peers, {100 * straggler.share:.0f} % of each step"
            logger.warning("straggler: rank %d (%s), %s", straggler.rank, straggler.kind, cost)
            self._writer.event("straggler_found", asdict(straggler))
        for rank in gone:
            logger.info("rank %d is no longer slower than its peers", rank)
            self._writer.event("straggler_gone", {"rank": rank})
        now = time.monotonic()
        if found or gone or now - self._written_at >= RANK_TIMES_SECONDS:
            self._written_at = now
            self._writer.event("rank_times", {"ranks": self._watch.summary()})
        return self._watch.values()


class Losses:
    """Reduces the loss over all ranks and fetches it, with one collective and one copy."""

    def __init__(self, run: TrainerRun, ranks: Ranks) -> None:
        self._layout = run.attempt.layout
        self._dp_rank = MeshCoordinates.of(ranks.rank, self._layout).dp
        self._tokens_share_D = torch.tensor(
            [share_of(run.partition, dp_rank) for dp_rank in range(self._layout.dp)],
            device=ranks.device,
        )

    def __call__(self, metrics: StepMetrics) -> dict[str, float]:
        """Return mean loss, largest mean of a data-parallel rank, and gradient norm; this waits."""
        loss_D = torch.zeros_like(self._tokens_share_D)
        # Each tensor-parallel rank has the whole loss, so divide by tp; on the other axes, ranks
        # have parts of the loss.
        loss_D[self._dp_rank] = metrics.loss / self._layout.tp
        dist.all_reduce(loss_D)
        means_D = loss_D / self._tokens_share_D
        grad_norm = metrics.grad_norm.to(loss_D.device)
        fetched = torch.stack([loss_D.sum(), means_D.max(), grad_norm]).tolist()
        return dict(zip(("train/loss", "train/loss_max", "train/grad_norm"), fetched, strict=True))


def share_of(partition: BatchPartition, dp_rank: int) -> float:
    """Return the fraction of the global batch's sequences that a data-parallel rank runs."""
    return sum(map(len, partition.for_rank(dp_rank))) / partition.global_batch_size
