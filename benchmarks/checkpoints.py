"""Saving and loading a state of more than 2 GB, against plain writes and reads of the same bytes.

Two ranks with FSDP, each with its own file. Each round runs in sequence: a plain write by the same
number of processes, a save, a plain read, a load, and a save in the background of training steps.
So other load on the machine affects all of them alike. Each round measures a first and a second
plan. In memory (tmpfs) the figures have targets; on a disk they have none. There a file is synced
after the write, and dropped from the page cache before the plain read and before the load. Both
read into the memory of the model and the optimizer, which is already mapped.

    python -m benchmarks.checkpoints [--rounds 7] [--layers 3] [--disk FOLDER] [--no-disk]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor

from benchmarks.report import emit
from trainer.checkpoint.manager import CheckpointManager
from trainer.checkpoint.manifest import metadata_digest
from trainer.checkpoint.pending_save import PendingSave
from trainer.checkpoint.reader.load import load
from trainer.checkpoint.tensors import train_tensors
from trainer.distributed import Ranks
from trainer.loop.build import Assembly, assemble
from trainer.run import TrainerRun
from trainyard.protocol.attempt import AttemptSpec, ResumePoint
from trainyard.protocol.manifest import DataState, Manifest, TrainState
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path
from trainyard.run.directory import RunDirectory
from trainyard.spec.auto import resolved
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

MEMORY = Path("/dev/shm")
RANKS = 2
PIECE = 8 * 2**20
PACKAGES = ("torch", "xxhash")
WRITE, READ, BLOCKED, PLANNED = 0.8, 0.8, 0.05, 0.3
JOB = "bench"
CPU = torch.device("cpu")


@dataclass
class Measured:
    """Seconds of each round on rank 0, with a barrier of all ranks before and after."""

    size: int = 0
    """Bytes of a checkpoint."""
    plain_write: list[float] = field(default_factory=list)
    save: list[float] = field(default_factory=list)
    plain_read: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    first_plan: list[float] = field(default_factory=list)
    second_plan: list[float] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)
    upload: list[float] = field(default_factory=list)
    """Time from the start of a background save to its end."""
    step: list[float] = field(default_factory=list)
    """Time of a step without a save."""
    step_during_upload: list[float] = field(default_factory=list)
    """Mean time of the steps during an upload."""

    def ratios(self, name: str, *, of: str) -> list[float]:
        """Return one list divided by another, round by round."""
        return [a / b for a, b in zip(getattr(self, name), getattr(self, of), strict=True)]

    def rate(self, name: str) -> float:
        """Return GB per second of the median round."""
        seconds: list[float] = getattr(self, name)
        return round(self.size / statistics.median(seconds) / 1e9, 3)


class Bench:
    """The work of a rank, round by round."""

    def __init__(self, folder: Path, layers: int) -> None:
        self.folder = folder
        self._layout = Layout(dp_shard=RANKS)
        self._spec = spec(layers)
        group = dist.group.WORLD
        assert group is not None
        self._group = group
        self._assembly: Assembly = assemble(self._spec, self._layout, CPU)
        self._background = self._manager("async")
        self._numbers = 0
        self.measured = Measured()

    def round(self) -> None:
        """Measure everything once."""
        seen = self.measured
        saver = self._manager("disabled")
        first = self._save(saver)
        seen.first_plan.append(saver.plan_seconds)
        mine = self._own_file(first).stat().st_size
        self._forget(first)
        seen.plain_write.append(self._timed(lambda: self._plain_write(mine)))
        saved: list[Manifest] = []
        seen.save.append(self._timed(lambda: saved.append(self._save(saver))))
        seen.second_plan.append(saver.plan_seconds)
        manifest = saved[0]
        seen.size = manifest.size
        self._read_and_load(manifest)
        self._forget(manifest)
        self._steps_during_an_upload()

    def _read_and_load(self, manifest: Manifest) -> None:
        """Measure both in alternating order, because layers below a disk have caches."""
        seen, file = self.measured, self._own_file(manifest)

        def read() -> None:
            _forget_pages(file)
            seen.plain_read.append(self._timed(lambda: self._plain_read(file)))

        def load() -> None:
            _forget_pages(file)
            seen.load.append(self._timed(lambda: self._load(manifest)))

        for action in (read, load) if len(seen.load) % 2 == 0 else (load, read):
            action()

    def warm_up(self) -> None:
        """Run the preflight, which allocates the staging buffers before the measured saves."""
        self._forget(self._save(self._background))
        self._step(lambda: None)

    def _steps_during_an_upload(self) -> None:
        seen = self.measured
        seen.step.append(self._timed(lambda: self._step(lambda: None)))
        dist.barrier()
        started = time.perf_counter()
        save = self._begin(self._background)
        blocked = time.perf_counter() - started
        steps = 0
        waited: list[float] = []
        while True:
            self._step(lambda: waited.append(_seconds(save.staged.wait)))
            steps += 1
            if self._everywhere(save.done()):
                break
        ended = time.perf_counter() - started
        blocked += sum(waited) + _seconds(self._background.settle)
        seen.blocked.append(blocked)
        seen.upload.append(save.result().save_seconds)
        seen.step_during_upload.append((ended - blocked) / steps)
        self._forget(save.result())

    def _step(self, before_update: Callable[[], None]) -> None:
        tokens_BS = torch.randint(256, (1, self._spec.training.seq_len + 1))
        model, optimizer = self._assembly.model, self._assembly.optimizer
        model(tokens_BS[:, :-1]).float().logsumexp(-1).mean().backward()
        before_update()
        optimizer.step()
        optimizer.zero_grad()

    def _begin(self, saver: CheckpointManager) -> PendingSave:
        self._numbers += 1
        state = TrainState(step=self._numbers, tokens=0, data=DataState(dataset_digest="d" * 32))
        return saver.begin(self._assembly.model, self._assembly.optimizer, state, kind="interval")

    def _save(self, saver: CheckpointManager) -> Manifest:
        return self._begin(saver).result()

    def _load(self, manifest: Manifest) -> None:
        step = manifest.train_state.step
        resume = ResumePoint(
            checkpoint_id=manifest.checkpoint_id,
            path=checkpoint_path(JOB, 1, step),
            step=step,
            metadata_digest=metadata_digest(manifest),
        )
        model, optimizer = self._assembly.model, self._assembly.optimizer
        load(model, optimizer, resume, root=self.folder, group=self._group, layout=self._layout)

    def _plain_write(self, size: int) -> None:
        """Write the save's number of bytes from the same memory, and sync them."""
        path = self.folder / f"plain-{dist.get_rank()}"
        left = size
        with path.open("wb", buffering=0) as file:
            for memory in self._memory():
                for start in range(0, min(len(memory), left), PIECE):
                    file.write(memory[start : start + min(PIECE, left - start)])
                left -= min(len(memory), left)
            file.write(bytes(left))
            os.fsync(file.fileno())
        path.unlink()

    def _plain_read(self, file: Path) -> None:
        """Read a rank's file into existing memory."""
        buffers = [memory for memory in self._memory() if len(memory) >= 2**20]
        size, read, at = file.stat().st_size, 0, 0
        with file.open("rb", buffering=0) as stream:
            while read < size:
                memory = buffers[at % len(buffers)]
                at += 1
                for start in range(0, len(memory), PIECE):
                    read += stream.readinto(memory[start : start + PIECE]) or 0

    def _memory(self) -> list[memoryview]:
        tensors = train_tensors(self._assembly.model, self._assembly.optimizer).values()
        local = [getattr(tensor, "_local_tensor", tensor).detach() for tensor in tensors]
        return [_bytes(tensor) for tensor in local if tensor.is_contiguous()]

    def _own_file(self, manifest: Manifest) -> Path:
        step = manifest.train_state.step
        return self.folder / checkpoint_path(JOB, 1, step) / f"__{dist.get_rank()}_0.distcp"

    def _forget(self, manifest: Manifest) -> None:
        """Remove a checkpoint, because only a few fit in memory."""
        dist.barrier()
        if dist.get_rank() == 0:
            step = manifest.train_state.step
            shutil.rmtree(self.folder / checkpoint_path(JOB, 1, step))
        dist.barrier()

    def _timed(self, action: Callable[[], object]) -> float:
        dist.barrier()
        started = time.perf_counter()
        action()
        dist.barrier()
        return time.perf_counter() - started

    def _everywhere(self, mine: bool) -> bool:
        all_of_them = torch.tensor(int(mine))
        dist.all_reduce(all_of_them, op=dist.ReduceOp.MIN)
        return bool(all_of_them)

    def _manager(self, mode: str) -> CheckpointManager:
        spec = self._spec.model_dump(mode="json") | {"checkpoint": {"async_mode": mode}}
        run = TrainerRun(
            directory=RunDirectory(self.folder),
            submitted=self._spec,
            spec=resolved(parse_job_spec(spec), "cpu"),
            attempt=AttemptSpec(job_id=JOB, attempt=1, layout=self._layout),
            checkpoint_root=self.folder,
            cache_dir=self.folder,
        )
        return CheckpointManager(run, Ranks(dist.get_rank(), RANKS, CPU, self._group))


def spec(layers: int) -> JobSpec:
    """Return a model as wide as Llama 1B, with 0.8 GB of state per layer, and short steps."""
    return parse_job_spec(
        {
            "model": {"dim": 2048, "n_layers": layers, "n_heads": 16, "n_kv_heads": 16}
            | {"ffn_dim": 8192},
            "training": {"seq_len": 16, "global_batch_size": RANKS, "micro_batch_size": 1},
            "resources": {"world_size": RANKS, "device": "cpu"},
        }
    )


def run_rank(rank: int, folder: str, rounds: int, layers: int) -> None:
    """Measure on one rank; rank 0 writes the measurements."""
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS)
    bench = Bench(Path(folder), layers)
    bench.warm_up()
    for _ in range(rounds):
        bench.round()
    if rank == 0:
        (Path(folder) / "measured.json").write_text(json.dumps(vars(bench.measured)))
    dist.barrier()
    dist.destroy_process_group()


def measure(place: Path, *, rounds: int, layers: int) -> Measured:
    """Run all rounds on one storage."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-", dir=place) as folder:
        multiprocessing.start_processes(
            run_rank, (folder, rounds, layers), nprocs=RANKS, start_method="spawn"
        )
        return Measured(**json.loads((Path(folder) / "measured.json").read_text()))


def emit_figures(seen: Measured, storage: str, *, bounded: bool) -> bool:
    """Print the figures of a storage; unbounded ones have a target that any value reaches."""
    details: dict[str, Any] = {
        "storage": storage,
        "state_gb": round(seen.size / 1e9, 2),
        "writers": RANKS,
        "rounds": len(seen.save),
    }

    def emit_ratio(
        name: str, ratios: list[float], *, unit: str, target: float, at_least: bool, **more: object
    ) -> bool:
        anything = 0.0 if at_least else float("1e9")
        return emit(
            f"checkpoint_{name}_{storage}",
            figure=statistics.median(ratios),
            unit=unit,
            target=target if bounded else anything,
            at_least=at_least,
            packages=PACKAGES,
            **details,
            **more,
        )

    slowdown = statistics.median(seen.ratios("step_during_upload", of="step"))
    return all(
        [
            emit_ratio(
                "write",
                seen.ratios("plain_write", of="save"),
                unit="of the bandwidth of a plain write (checksums included)",
                target=WRITE,
                at_least=True,
                gb_per_second=seen.rate("save"),
                plain_gb_per_second=seen.rate("plain_write"),
            ),
            emit_ratio(
                "load",
                seen.ratios("plain_read", of="load"),
                unit="of the bandwidth of a plain read (checksums included)",
                target=READ,
                at_least=True,
                gb_per_second=seen.rate("load"),
                plain_gb_per_second=seen.rate("plain_read"),
            ),
            emit_ratio(
                "blocked",
                seen.ratios("blocked", of="save"),
                unit="of a synchronous save's time, in which one in the background blocks training",
                target=BLOCKED,
                at_least=False,
                blocked_seconds=round(statistics.median(seen.blocked), 4),
                save_seconds=round(statistics.median(seen.save), 3),
                upload_seconds=round(statistics.median(seen.upload), 3),
                step_seconds=round(statistics.median(seen.step), 3),
                step_time_beside_the_upload=round(slowdown, 3),
            ),
            emit_ratio(
                "second_plan",
                seen.ratios("second_plan", of="first_plan"),
                unit="of the first plan's time",
                target=PLANNED,
                at_least=False,
                first_plan_seconds=round(statistics.median(seen.first_plan), 4),
                second_plan_seconds=round(statistics.median(seen.second_plan), 4),
            ),
        ]
    )


def _forget_pages(file: Path) -> None:
    """Drop a file from the page cache, so that the disk is read; no effect on tmpfs."""
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _bytes(tensor: Tensor) -> memoryview:
    memory: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(memory)


def main() -> int:
    """Measure in memory and on a disk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--no-disk", action="store_true")
    given = parser.parse_args()
    reached = [
        emit_figures(
            measure(MEMORY, rounds=given.rounds, layers=given.layers), "tmpfs", bounded=True
        )
    ]
    if not given.no_disk:
        disk = measure(given.disk, rounds=given.rounds, layers=given.layers)
        reached.append(emit_figures(disk, "disk", bounded=False))
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
