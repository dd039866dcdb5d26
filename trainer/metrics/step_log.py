"""Collects what each step leaves for `metrics.jsonl`, and writes it a few steps at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainer.data.digest import in_global_order, step_digest
from trainer.distributed import Ranks
from trainer.metrics.run_writer import RunWriter
from trainer.parallel.mesh import Place
from trainyard.run.records import MetricRecord
from trainyard.spec.layout import Layout
from trainyard.training.batch_partition import BatchPartition

FLUSH_STEPS = 256


@dataclass(frozen=True)
class _Step:
    step: int
    time: float
    hashes: list[int]


class StepLog:
    """The steps since the last written line; every rank calls every method."""

    def __init__(
        self, *, partition: BatchPartition, layout: Layout, ranks: Ranks, recorder: RunWriter
    ) -> None:
        self._partition = partition
        self._ranks = ranks
        self._recorder = recorder
        self._steps: list[_Step] = []
        by_dp_rank = {
            Place.of(rank, layout).dp: rank for rank in reversed(range(layout.world_size))
        }
        self._sources = [by_dp_rank[rank] for rank in range(layout.dp)]

    @property
    def full(self) -> bool:
        """Whether so many steps wait that they should be written, values or not."""
        return len(self._steps) >= FLUSH_STEPS

    def add(self, step: int, hashes: list[int]) -> None:
        """Keep a completed step with the hashes of the sequences that this rank ran."""
        self._steps.append(_Step(step, time.time(), hashes))

    def write(self, values: dict[str, float]) -> None:
        """Write one line a step; the values are those of the last one."""
        digests = self._digests()
        last = len(self._steps) - 1
        lines = [
            MetricRecord(
                step=done.step,
                time=done.time,
                values=values if index == last else {},
                data_digest=digest,
            )
            for index, (done, digest) in enumerate(zip(self._steps, digests, strict=True))
        ]
        self._recorder.metrics(lines)
        self._steps.clear()

    def _digests(self) -> list[str]:
        """Return the digest of each step's sequences; on global rank 0 only it is right."""
        slots = self._partition.rounds * self._partition.micro_batch_size
        mine = torch.zeros(len(self._steps), slots, dtype=torch.int64)
        for row, done in zip(mine, self._steps, strict=True):
            row[: len(done.hashes)] = torch.tensor(done.hashes, dtype=torch.int64)
        leads = self._ranks.leads
        gathered = [torch.empty_like(mine) for _ in range(self._ranks.world_size)]
        dist.gather(mine, gathered if leads else None, dst=0, group=self._ranks.cpu_group)
        if not leads:
            return [""] * len(self._steps)
        by_rank = [gathered[source].tolist() for source in self._sources]
        return [
            step_digest(in_global_order(self._partition, [rows[index] for rows in by_rank]))
            for index in range(len(self._steps))
        ]
