"""Runs a configuration on CPU ranks of this machine, and measures its steps and its memory.

Ranks are forked from a server that has loaded torch and the trainer, each on one thread. The steps
are the trainer's, on random tokens, without saves and metrics.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import resource
import statistics
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.one_rank import LiveBytes
from trainer.data.batches import MicroBatch
from trainer.loop.build import Assembly, assemble
from trainer.loop.step import TrainStep
from trainyard.spec.job import JobSpec

PRELOAD = ["torch._dynamo", "trainer.parallel.pipeline", "benchmarks.planner_accuracy.measure"]
WARM_STEPS, LEAST_STEPS, MAX_STEPS = 2, 3, 20
SECONDS = 1.5
"""Approximate total time of the measured steps of a configuration."""
PATIENCE_SECONDS = 600.0
RESULT_SECONDS = 60.0


@dataclass(frozen=True)
class Measurement:
    """Measurements of a configuration."""

    wall: float
    """Median wall time of a step in seconds."""
    shortest: float
    """Seconds of the shortest step."""
    processor: float
    """Mean processor seconds of a step, over all ranks."""
    steps: int
    """Measured steps."""
    tensors: int
    """Peak bytes of tensors on the fullest rank."""
    resident: int
    """Peak of the resident memory of the fullest rank, torch's own included."""


def measure(spec: JobSpec) -> Measurement:
    """Run a job for some steps.

    Raises:
        RuntimeError: a rank failed, or gave no result in time.
    """
    world_size = spec.resources.world_size
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    started = []
    for rank in range(world_size):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(spec, rank, store.port, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    try:
        results = [_result(process, ours) for process, ours in started]
        for process, _ in started:
            process.join(RESULT_SECONDS)  # killing a rank earlier would show its peers a fault
    finally:
        for process, ours in started:
            process.kill()
            process.join()
            ours.close()
    seconds = [each["wall"] for each in results]
    first = seconds[0]
    return Measurement(
        wall=statistics.median(first),
        shortest=min(first),
        processor=sum(each["processor"] for each in results),
        steps=len(first),
        tensors=max(each["tensors"] for each in results),
        resident=max(each["resident"] for each in results),
    )


def _result(process: Any, connection: Connection) -> dict[str, Any]:
    if connection.poll(PATIENCE_SECONDS):
        try:
            result: dict[str, Any] = connection.recv()
            return result
        except EOFError:
            process.join(RESULT_SECONDS)
    raise RuntimeError(f"a rank gave no result; its exit code is {process.exitcode}")


def _run(spec: JobSpec, rank: int, port: int, results: Connection) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    world_size = spec.resources.world_size
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    layout = spec.layout()
    parts = assemble(spec, layout, torch.device("cpu"))
    train = TrainStep(parts.forward_backward, parts.optimizer, spec, stages=parts.stages)
    batches, numbers = _batches(spec), itertools.count(1)

    def step() -> float:
        """Run a step on all ranks; the sum of their losses ends it, like a line of metrics."""
        started = time.perf_counter()
        loss = train(next(numbers), batches).loss
        dist.all_reduce(loss)
        loss.item()
        return time.perf_counter() - started

    warm = [step() for _ in range(WARM_STEPS)]
    count = torch.tensor(min(max(round(SECONDS / warm[-1]), LEAST_STEPS), MAX_STEPS))
    dist.broadcast(count, 0)
    before = time.process_time()
    wall = [step() for _ in range(int(count))]
    processor = (time.process_time() - before) / len(wall)
    tensors = _peak_of_tensors(parts, step)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    results.send({"wall": wall, "processor": processor, "tensors": tensors, "resident": resident})
    dist.barrier()
    dist.destroy_process_group()


def _peak_of_tensors(parts: Assembly, step: Any) -> int:
    state = [t for held in parts.optimizer.state.values() for t in held.values()]
    held = [*parts.model.parameters(), *parts.model.buffers(), *state]
    tensors = [getattr(t, "_local_tensor", t) for t in held if isinstance(t, torch.Tensor)]
    live = LiveBytes(tensors)
    with live.watching():
        step()
    return live.peak


def _batches(spec: JobSpec) -> list[MicroBatch]:
    """Return random tokens, equal on ranks that share a micro-batch."""
    training = spec.training
    rounds = spec.batch_partition(spec.layout()).rounds
    generator = np.random.default_rng(0)
    shape = training.micro_batch_size, training.seq_len + 1
    positions = np.arange(training.micro_batch_size)
    made = []
    for _ in range(rounds):
        window = generator.integers(spec.architecture.vocab_size, size=shape)
        made.append(MicroBatch(window[:, :-1], window[:, 1:], positions, weight=1))
    return made
