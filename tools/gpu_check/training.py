"""Short training in this process, with synthetic sequences and the trainer's model and step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tools.gpu_check.check import DeviceKind
from trainer.data.batches import MicroBatch
from trainer.loop.build import assemble
from trainer.loop.step import TrainStep
from trainer.process import prefer_growing_segments
from trainyard.spec.job import JobSpec, parse_job_spec
from trainyard.spec.layout import Layout

MODEL = {
    "cuda": {"dim": 256, "n_layers": 4, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 768},
    "cpu": {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 192},
}
"""The model under test. Heads have 64 features on CUDA and 16 on a CPU. A CPU computes the
reference at the same size within seconds."""
TRAINING = {
    "cuda": {"seq_len": 512, "global_batch_size": 4, "micro_batch_size": 2},
    "cpu": {"seq_len": 128, "global_batch_size": 4, "micro_batch_size": 2},
}
RATE = {"cuda": 3e-4, "cpu": 3e-3}
"""Learning rates at which the loss falls by a tenth in six steps without jumps. At higher rates
rounding errors of bfloat16 grow from step to step, so that no bound is meaningful."""
EAGER = {"enabled": False}
"""Section `compile` of a job with uncompiled blocks, independent of the default."""
VOCABULARY = 512
STEPS = 6
INPUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "documents": {"data": {"document_masks": True}},
    "dropout": {"model": {"dropout": 0.1}},
}
"""Kinds of input, each as the sections of a job that differ from the plain job."""


def job(size: DeviceKind, **sections: dict[str, Any]) -> JobSpec:
    """Return the small job of these checks, with the given fields of its sections changed."""
    document: dict[str, dict[str, Any]] = {
        "model": {"size": "debug", "vocab_size": VOCABULARY, **MODEL[size]},
        "training": {"steps": 100, **TRAINING[size]},
        "optimizer": {"lr": RATE[size]},
        "lr_schedule": {"warmup_steps": 0},
        "compile": EAGER,
    }
    for name, fields in sections.items():
        document[name] = document.get(name, {}) | fields
    return parse_job_spec(document)


def compile_section(device: DeviceKind) -> dict[str, Any]:
    """Return the section `compile` of a job with compiled blocks.

    A CPU uses `aot_eager`, because inductor takes a minute per program on two CPU cores. The graphs
    are the same.
    """
    return {"enabled": True, "backend": "inductor" if device == "cuda" else "aot_eager"}


@contextmanager
def alone(kind: DeviceKind) -> Iterator[torch.device]:
    """Make a process group with only this process, as in a launch without torchrun."""
    prefer_growing_segments(os.environ)
    device = device_of(kind)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield device
    finally:
        dist.destroy_process_group()


def device_of(kind: DeviceKind) -> torch.device:
    """Return the device under test; on CUDA, select the first GPU."""
    if kind == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)


@dataclass(frozen=True)
class Curve:
    """Losses and gradient norms of some training steps."""

    losses: list[float]
    """Mean loss of each step, over all tokens of the global batch."""
    grad_norms: list[float]
    """Gradient norm of each step, before clipping."""


class Training:
    """Training on one rank; all ranks of the layout must create this object together."""

    def __init__(self, spec: JobSpec, layout: Layout, device: torch.device) -> None:
        self._spec, self._layout, self._device = spec, layout, device
        self.assembly = assemble(spec, layout, device)
        self._train = TrainStep(
            self.assembly.forward_backward,
            self.assembly.optimizer,
            spec,
            stages=self.assembly.stages,
        )

    def step(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a step; return this rank's share of the loss, and the gradient norm."""
        dp = dist.get_rank() // (self._layout.cp * self._layout.tp) % self._layout.dp
        result = self._train(step, batches(self._spec, self._layout, step=step, dp=dp))
        return result.loss, result.grad_norm

    def curve(self, steps: int = STEPS) -> Curve:
        """Train `steps` steps; read results from the device only after the last step."""
        shares, norms = zip(*(self.step(step) for step in range(1, steps + 1)), strict=True)
        losses = torch.stack(shares).float()
        if dist.get_world_size() > 1:
            dist.all_reduce(losses)  # each tensor-parallel rank has the whole loss
            losses /= self._layout.tp
        return Curve(losses.tolist(), torch.stack(norms).float().tolist())


def batches(spec: JobSpec, layout: Layout, *, step: int, dp: int) -> list[MicroBatch]:
    """Return a data-parallel rank's micro-batches; the sequences depend only on seed and step.

    In a sequence each token exceeds the previous one by a fixed number, which a model can learn.
    """
    training = spec.training
    size, length = training.global_batch_size, training.seq_len
    random = np.random.default_rng([training.seed, step])
    starts = random.integers(0, VOCABULARY, (size, 1))
    windows = (starts + np.arange(length + 1) * random.integers(1, 4, (size, 1))) % VOCABULARY
    # Documents of uneven lengths, many of which end inside an attention block.
    ends = np.sort(random.integers(1, length, (size, 5)), axis=1)
    segments = (np.arange(length)[None, :, None] >= ends[:, None, :]).sum(-1).astype(np.int32)
    masked = spec.data.document_masks
    return [
        MicroBatch(
            tokens=np.ascontiguousarray(windows[rows, :-1]),
            labels=np.ascontiguousarray(windows[rows, 1:]),
            positions=np.asarray(rows, dtype=np.int64) + (step - 1) * size,
            weight=1,
            segments=np.ascontiguousarray(segments[rows]) if masked else None,
        )
        for rows in (list(offsets) for offsets in spec.batch_partition(layout).for_rank(dp))
    ]


def curve(spec: JobSpec, device: torch.device, steps: int = STEPS) -> Curve:
    """Train a job on one rank from new initial weights; return its curve."""
    return Training(spec, Layout(), device).curve(steps)
