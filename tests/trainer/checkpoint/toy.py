"""A small model that ranks train, save and load; odd shapes, so that three ranks share unevenly."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from trainer.checkpoint.manager import CheckpointManager
from trainer.checkpoint.manifest import metadata_digest
from trainer.checkpoint.reader.load import load as load_checkpoint
from trainer.checkpoint.reader.storage_reader import CheckedReader
from trainer.checkpoint.tensors import train_tensors
from trainer.distributed import Ranks
from trainer.errors import RunError
from trainer.loop.optimizer import materialize_state
from trainer.run import TrainerRun
from trainer.storage.root import StoragePath
from trainyard.protocol.attempt import AttemptSpec, ResumePoint
from trainyard.protocol.manifest import DataState, Manifest, TrainState
from trainyard.run.checkpoints.checkpoint_names import checkpoint_path
from trainyard.run.directory import RunDirectory
from trainyard.spec.auto import resolved
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import CheckpointSection

JOB = "toy"


class Toy(nn.Module):
    """Two layers of 5 and 2 rows and a norm; dropout draws from the ambient generator."""

    def __init__(self, *, width: int = 7) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, 5), nn.Linear(5, 2)])
        self.norm = nn.LayerNorm(5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.layers[0](x).relu())
        output: Tensor = self.layers[1](nn.functional.dropout(hidden, 0.1))
        return output


def build(layout: Layout, *, seed: int, width: int = 7) -> tuple[Toy, Optimizer]:
    """Return the sharded model and its optimizer with zero moments, the same on any layout."""
    torch.manual_seed(seed)
    model = Toy(width=width)
    shape = (layout.dp_replicate, layout.dp_shard)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard"))
    mesh = mesh if layout.dp_replicate > 1 else mesh["dp_shard"]
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = AdamW(model.parameters(), lr=0.01)
    materialize_state(optimizer)
    return model, optimizer


def train(model: Toy, optimizer: Optimizer, *, steps: int, width: int = 7) -> None:
    """Run optimizer steps on random inputs."""
    for _ in range(steps):
        model(torch.randn(4, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def manager(
    root: StoragePath,
    layout: Layout,
    *,
    attempt: int = 1,
    spec: JobSpec | None = None,
    resume: ResumePoint | None = None,
    section: CheckpointSection | None = None,
) -> CheckpointManager:
    """Return the manager of an attempt of the toy job, without retries of saves.

    `section` holds its settings of saves.
    """
    group = dist.group.WORLD
    assert group is not None
    settings = resolved(JobSpec(checkpoint=section) if section else spec or JobSpec(), "cpu")
    once = settings.checkpoint.model_copy(update={"give_up_after_seconds": 0.0})
    run = TrainerRun(
        directory=RunDirectory(Path()),
        submitted=spec or JobSpec(),
        spec=settings.model_copy(update={"checkpoint": once}),
        attempt=AttemptSpec(job_id=JOB, attempt=attempt, layout=layout, resume=resume),
        checkpoint_root=root,
        cache_dir=Path(),
    )
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), group)
    return CheckpointManager(run, ranks)


def load(
    root: StoragePath,
    layout: Layout,
    *,
    model: nn.Module,
    optimizer: Optimizer,
    resume: ResumePoint,
) -> CheckedReader:
    """Load a checkpoint of the toy job into model and optimizer, on all ranks."""
    group = dist.group.WORLD
    assert group is not None
    return load_checkpoint(model, optimizer, resume, root=root, group=group, layout=layout)


def state_at(step: int) -> TrainState:
    """Return the counters after `step` steps."""
    return TrainState(step=step, tokens=step * 28, data=DataState(dataset_digest="d" * 32))


def full_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, unsharded."""
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
        for name, tensor in train_tensors(model, optimizer).items()
    }


def resume_point(manifest: Manifest) -> ResumePoint:
    """Return the resume point of a checkpoint."""
    step = manifest.train_state.step
    return ResumePoint(
        checkpoint_id=manifest.checkpoint_id,
        path=checkpoint_path(JOB, manifest.attempt, step),
        step=step,
        metadata_digest=metadata_digest(manifest),
    )


def save_trained(
    root: StoragePath, layout: Layout, steps: int
) -> tuple[Manifest, dict[str, Tensor]]:
    """Train, save once, and return the manifest and the saved tensors."""
    model, optimizer = build(layout, seed=1)
    train(model, optimizer, steps=steps)
    saver = manager(root, layout)
    manifest = saver.save(model, optimizer, state_at(steps), kind="interval")
    return manifest, full_tensors(model, optimizer)


Refusal = tuple[str, str, str | None, str]
"""Type, text and path of an error, and the type of its cause."""


def refusal(error: RunError) -> Refusal:
    """Return the fields of an error that tests compare; the error itself may not be picklable."""
    return type(error).__name__, str(error), error.path, type(error.__cause__).__name__
