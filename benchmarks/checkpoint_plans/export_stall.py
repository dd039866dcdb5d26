"""How long a background save blocks training while a node exports another checkpoint.

An automatic export runs as an operation does on a node: in a process of its own, on one thread, at
low priority, again and again. Meanwhile `save_stall` alternates synchronous and background saves of
one rank. The same rounds run without an export, before and after.

The target is for wall time: what the export adds to the time for which training waits for a save.
Processor times of the training thread explain it: on a machine with fewer cores than processes,
wall time also measures the system's scheduler.

    python -m benchmarks.checkpoint_plans.export_stall [--check]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Event

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.checkpoint_plans.save_stall import SaveStall, manager_of, save_stall
from benchmarks.report import emit
from trainer.checkpoint.manifest import committed_manifests, metadata_digest
from trainer.loop.build import assemble
from trainer.operations.__main__ import main as run_operation
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import DataState, TrainState
from trainyard.protocol.operations import (
    OUTCOME,
    TASK,
    AutoExportTask,
    OperationKind,
    OperationOrder,
    OperationOutcome,
    OperationTask,
)
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout
from worker.operations import NICENESS

LIMIT = 0.005
"""Limit of the time that an export adds to the wait for a background save, relative to a
synchronous save."""
SAVED = ("8B", Layout(dp_shard=512))
ROUNDS = 7
MEMORY = Path("/dev/shm")
WIDE = {"size": "debug", "dim": 1024, "n_layers": 8, "n_heads": 16, "n_kv_heads": 8}
"""Model of the exported checkpoint; its weights and moments take 0.37 GB."""
PACKAGES = ("torch", "safetensors")


def main() -> int:
    """Measure, print, and return 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_plans.export_stall")
    parser.add_argument("--check", action="store_true", help="a tiny size, without targets")
    is_check = parser.parse_args().check
    size, layout = ("debug", Layout(dp_shard=4)) if is_check else SAVED
    rounds = 2 if is_check else ROUNDS
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-", dir=MEMORY) as folder:

        def stall() -> SaveStall:
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                return pool.submit(save_stall, size, layout, MEMORY, rounds).result()

        with ProcessPoolExecutor(1, mp_context=context) as pool:
            operation = pool.submit(_prepare, Path(folder), is_wide=not is_check).result()
        before = stall()
        with _exporting(operation) as exports:
            during = stall()
        after = stall()
    phases = (("before", before, 0), ("during", during, exports[0]), ("after", after, 0))
    for phase, stalled, count in phases:
        emit(
            f"save_stall_{phase}_exports",
            figure=stalled.share,
            unit="of a synchronous save",
            packages=PACKAGES,
            exports=count,
            **asdict(stalled),
        )
    without = (before.begin_processor + after.begin_processor) / 2
    reached = emit(
        "save_stall_by_exports",
        figure=during.share - (before.share + after.share) / 2,
        unit="of a synchronous save",
        processor_share=(during.begin_processor - without) / during.save_processor,
        target=None if is_check else LIMIT,
        at_least=False,
        packages=PACKAGES,
    )
    return 0 if reached else 1


def _prepare(folder: Path, *, is_wide: bool) -> Path:
    """Save a checkpoint on one rank; return the folder of an operation that exports it."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    spec = parse_job_spec(
        {"model": WIDE if is_wide else {"size": "debug"}, "resources": {"device": "cpu"}}
    )
    layout = Layout()
    assembly = assemble(spec, layout, torch.device("cpu"))
    saver = manager_of(spec, layout, folder=folder, mode="disabled")
    state = TrainState(step=0, tokens=0, data=DataState(dataset_digest="d" * 32))
    saver.begin(assembly.model, assembly.optimizer, state, kind="interval").result()
    (manifest,) = committed_manifests(folder, "bench-disabled")
    path = checkpoint_path(manifest.job_id, manifest.attempt, manifest.step)
    point = ResumePoint(
        checkpoint_id=manifest.checkpoint_id,
        path=path,
        step=0,
        metadata_digest=metadata_digest(manifest),
    )
    task = OperationTask(
        kind=OperationKind.AUTO_EXPORT,
        job_id=manifest.job_id,
        root="checkpoints",
        paths=(path,),
        checkpoint=point,
        auto_export=AutoExportTask(format="safetensors"),
    )
    operation = folder / "operation"
    operation.mkdir()
    order = OperationOrder(task=task, root_path=str(folder), roots={"checkpoints": str(folder)})
    (operation / TASK).write_text(order.model_dump_json())
    return operation


@contextmanager
def _exporting(operation: Path) -> Iterator[list[int]]:
    """Export in another process while the block runs; the list then has the number of exports."""
    context = multiprocessing.get_context("forkserver")
    counts: list[int] = []
    with context.Manager() as shared, ProcessPoolExecutor(1, mp_context=context) as pool:
        over = shared.Event()
        running = pool.submit(_export, operation, over)
        try:
            yield counts
        finally:
            over.set()
        counts.append(running.result())


def _export(operation: Path, over: Event) -> int:
    """Export again and again until the event is set; return the number of exports."""
    os.nice(NICENESS)
    torch.set_num_threads(1)
    count = 0
    while not over.is_set():
        run_operation(operation)
        outcome = OperationOutcome.model_validate_json((operation / OUTCOME).read_bytes())
        assert outcome.export is not None, outcome.message
        shutil.rmtree(Path(outcome.export.path))
        count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
