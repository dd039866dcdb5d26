"""How long a background save blocks the training thread, on one rank of many.

A fake process group stands for the other ranks, as in `one_rank_plan`, but this rank's tensors are
in memory and it writes its own file. It is rank 0, which also writes the index and the manifest.
The other ranks' answers after their writes are made up: one for each rank.

No step of such a model can run here. Instead the training thread multiplies matrices for a time
that is shorter than a forward and backward pass on GPUs.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer.checkpoint.chunks.index_file import ChunkIndex, file_name
from trainer.checkpoint.manager import CheckpointManager
from trainer.checkpoint.pending_save import PendingSave
from trainer.checkpoint.writer.checkpoint_writer import CheckpointWriter
from trainer.checkpoint.writer.storage_writer import WrittenShare
from trainer.distributed import Ranks
from trainer.loop.build import Assembly, assemble
from trainer.run import TrainerRun
from trainyard.protocol.attempt import AttemptSpec
from trainyard.protocol.manifest import DataState, ManifestFile, ManifestWriter, TrainState
from trainyard.run.directory import RunDirectory
from trainyard.spec.auto import resolved
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

CPU = torch.device("cpu")
PASS_SECONDS = 0.5
"""Time of a forward and backward pass. Llama 8B takes 1 s at 40 % of an H100's peak, with one
sequence of 8,192 tokens per rank."""


@dataclass(frozen=True)
class SaveStall:
    """Medians over the rounds, in seconds; wall time unless stated otherwise."""

    share: float
    """Time for which training waits for a background save, relative to a synchronous save."""
    begin: float
    """Wait while the save starts."""
    begin_processor: float
    """Processor time of the training thread meanwhile."""
    staged: float
    """Wait before the update, until training may change the tensors."""
    settled: float
    """Wait for a save that has ended."""
    save: float
    """Time of a synchronous save."""
    save_processor: float
    """Processor time of a synchronous save, of all threads."""
    state_bytes: float
    """Bytes of this rank's file."""


def save_stall(size: str, layout: Layout, place: Path, rounds: int) -> SaveStall:
    """Alternate synchronous and background saves; must be alone in its process."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world_size)
    spec = _spec(size, layout)
    assembly = assemble(spec, layout, CPU, draws=False)
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-", dir=place) as folder:
        return _Rounds(assembly, spec, layout=layout, folder=Path(folder)).measure(rounds)


def _spec(size: str, layout: Layout) -> JobSpec:
    return parse_job_spec(
        {
            "model": {"family": "llama3", "size": size},
            "training": {"seq_len": 8192, "global_batch_size": layout.dp},
            "parallelism": {"dp_shard": layout.dp_shard},
            "resources": {"world_size": layout.world_size, "device": "cpu"},
            "compile": {"enabled": False},
        }
    )


class _Rounds:
    def __init__(self, assembly: Assembly, spec: JobSpec, *, layout: Layout, folder: Path) -> None:
        self._assembly, self._folder = assembly, folder
        self._step = self._size = 0
        self._matrices = torch.ones(2, 256, 256)
        self._plain, self._background = (
            manager_of(spec, layout, folder=folder, mode=mode) for mode in ("disabled", "async")
        )

    def measure(self, rounds: int) -> SaveStall:
        for manager in (self._plain, self._background):  # plan, index and buffers are kept
            self._forget(self._begin(manager))
        seen = [self._round() for _ in range(rounds)]
        medians = [statistics.median(column) for column in zip(*seen, strict=True)]
        return SaveStall(*medians)

    def _round(self) -> tuple[float, ...]:
        """Return the measurements of a round in the order of `SaveStall`."""
        started, worked = time.perf_counter(), time.process_time()
        pending = self._begin(self._plain)
        save, save_processor = time.perf_counter() - started, time.process_time() - worked
        self._forget(pending)
        self._train(PASS_SECONDS)
        started, worked = time.perf_counter(), time.thread_time()
        pending = self._begin(self._background)
        begin, begin_processor = time.perf_counter() - started, time.thread_time() - worked
        self._train(PASS_SECONDS)
        staged = _seconds(self._background.wait_until_writable)
        while not self._background.ended:
            self._train(PASS_SECONDS / 10)
        settled = _seconds(self._background.settle)
        self._forget(pending)
        share = (begin + staged + settled) / save
        times = begin, begin_processor, staged, settled, save, save_processor
        return share, *times, self._size

    def _begin(self, manager: CheckpointManager) -> PendingSave:
        self._step += 1
        state = TrainState(step=self._step, tokens=0, data=DataState(dataset_digest="d" * 32))
        model, optimizer = self._assembly.model, self._assembly.optimizer
        return manager.begin(model, optimizer, state, kind="interval")

    def _train(self, seconds: float) -> None:
        ended = time.perf_counter() + seconds
        while time.perf_counter() < ended:
            torch.matmul(self._matrices[0], self._matrices[1])

    def _forget(self, pending: PendingSave) -> None:
        """Remove a checkpoint, because only a few fit in memory."""
        own, *_ = (file for file in pending.result().files if file.path == file_name(0))
        self._size = own.size
        for folder in self._folder.glob("*/*/step-*"):
            shutil.rmtree(folder)


class _WriterOfAll(CheckpointWriter):
    """A writer for which the other ranks finish their files together with this one."""

    _others: list[WrittenShare] | None = None

    def _write(
        self, save: PendingSave, tensors: dict[str, Tensor]
    ) -> tuple[list[WrittenShare], ChunkIndex]:
        written, index = super()._write(save, tensors)
        if self._others is None:
            numbers = index.ownership.numbers_bytes - written[0].numbers_bytes
            self._others = [
                _answer(rank, index, numbers if rank == 1 else 0) for rank in range(1, len(written))
            ]
        return [written[0], *self._others], index


def _answer(rank: int, index: ChunkIndex, numbers_bytes: int) -> WrittenShare:
    size = index.file_size(rank)
    return WrittenShare(
        ManifestFile(path=file_name(rank), size=size, xxh3_128=f"{rank:032x}"),
        ManifestWriter(rank=rank, size=size, files=1, write_seconds=1.0),
        numbers_bytes,
    )


def manager_of(spec: JobSpec, layout: Layout, *, folder: Path, mode: str) -> CheckpointManager:
    """Return the manager of rank 0's saves of the job `bench-<mode>`, without other ranks."""
    chosen = spec.model_dump(mode="json") | {"checkpoint": {"async_mode": mode}}
    run = TrainerRun(
        directory=RunDirectory(folder),
        submitted=spec,
        spec=resolved(parse_job_spec(chosen), "cpu"),
        attempt=AttemptSpec(job_id=f"bench-{mode}", attempt=1, layout=layout),
        checkpoint_root=folder,
        cache_dir=folder,
    )
    group = dist.group.WORLD
    assert group is not None
    with patch.object(dist, "new_group", lambda **_: group):  # gloo would search for the ranks
        manager = CheckpointManager(run, Ranks(0, layout.world_size, CPU, group))
    manager._writer = _WriterOfAll(run, None, group=group)
    return manager


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
