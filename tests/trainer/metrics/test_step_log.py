"""Lines of `metrics.jsonl`: one per step, digests in global order, values with the last one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import run_ranks
from tests.trainer.runs import Attempt
from trainer.data.digest import step_digest
from trainer.distributed import Ranks
from trainer.metrics.metrics_logger import FLUSH_STEPS, StepLog
from trainyard.run.directory import RunDirectory
from trainyard.spec.layout import Layout
from trainyard.training.batch_partition import BatchPartition


def sequence(step: int, offset: int) -> int:
    """Stand in for the hash of a sequence."""
    return step * 1000 + offset


def _log_three_steps(folder: str, layout: Layout) -> None:
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    ranks = Ranks(rank, dist.get_world_size(), torch.device("cpu"), group)
    partition = BatchPartition(global_batch_size=7, micro_batch_size=2, dp=layout.dp)
    log = StepLog(RunDirectory(Path(folder)), partition, layout=layout, ranks=ranks)
    mine = [offset for dealt in partition.for_rank(rank // layout.tp) for offset in dealt]
    for step in (1, 2, 3):
        log.add(step, [sequence(step, offset) for offset in mine])
        if step != 1:
            log.gather()
            log.write({"train/loss": float(step)})
    assert not log.full
    for step in range(FLUSH_STEPS):
        log.add(step, [])
    assert log.full


@pytest.mark.parametrize("layout", [Layout(dp_shard=3), Layout(dp_shard=2, tp=2)], ids=str)
def test_digests_are_gathered_in_global_order(layout: Layout, tmp_path: Path) -> None:
    run_ranks(layout.world_size, _log_three_steps, str(tmp_path), layout)
    attempt = Attempt(tmp_path)
    assert attempt.digests == {
        step: step_digest([sequence(step, offset) for offset in range(7)]) for step in (1, 2, 3)
    }
    assert attempt.values("train/loss") == {2: 2.0, 3: 3.0}
