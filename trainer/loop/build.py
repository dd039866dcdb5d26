"""Builds the training objects of a rank: model shards, optimizer, forward and backward pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch._inductor.config
import torch.utils.deterministic
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from trainer.data.dataset import Dataset
from trainer.distributed import Ranks, collective_timeout, run_near, same_on_every_rank
from trainer.errors import DataError
from trainer.hugging_face.load import load_initial_weights
from trainer.loop.optimizer import ShardAdamW, build_optimizer, materialize_state
from trainer.loop.step import ForwardBackward, MicroBatchLoop
from trainer.metrics.run_writer import RunWriter
from trainer.models.base import Model
from trainer.models.families import build_model
from trainer.models.initial_weights import init_weights
from trainer.parallel.mesh import build_mesh, set_timeouts
from trainer.parallel.parallelize import parallelize
from trainer.parallel.quantize import keep_scales_fresh, refresh_scales, refuse_uneven_layers
from trainer.run import TrainerRun
from trainyard.protocol.resume_parts import CheckpointPart
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout


@dataclass(frozen=True)
class Assembly:
    """The training objects of one rank."""

    model: Model
    """Model with this rank's parameters, under their names in the whole model."""
    optimizer: ShardAdamW
    """Optimizer that updates these parameters; its state already exists."""
    forward_backward: ForwardBackward
    """Computes the gradients of these parameters."""
    stages: ProcessGroup | None
    """Group of the pipeline's ranks, one for each stage; None without a pipeline."""
    mesh: DeviceMesh
    """Mesh of all ranks, by axis."""


def assemble(
    spec: JobSpec,
    layout: Layout,
    device: torch.device,
    *,
    roots: Mapping[str, str] | None = None,
    draws: bool = True,
) -> Assembly:
    """Build the model with its initial weights, and the optimizer, on this rank's device.

    This is a collective and requires a process group.

    Args:
        spec: effective spec of the attempt.
        layout: layout of the ranks.
        device: device on which this rank computes.
        roots: path of each root, by name; needed for the code of an own model.
        draws: whether to draw random weights; otherwise the weights are undefined until all are
            loaded.
    """
    spec = spec.on_layout(layout)
    run_near(device)  # not earlier: all CPUs build the node's token cache
    # Meta device until `allocate`, so that no rank ever holds the whole model.
    model = build_model(spec, roots)
    refuse_uneven_layers(model, spec)
    mesh = build_mesh(layout, device.type)
    set_timeouts(mesh, collective_timeout(spec.guard.hang_seconds))
    stages = parallelize(model, mesh, spec=spec, layout=layout)
    allocate(model, weights="cpu" if spec.optimizer.cpu_offload else device, buffers=device)
    init_weights(model, spec.training.seed, draws=draws)
    if draws:
        refresh_scales(model)
    optimizer = build_optimizer(model, spec)
    materialize_state(optimizer)
    keep_scales_fresh(model, optimizer)
    if layout.pp == 1:
        return Assembly(model, optimizer, MicroBatchLoop(model, spec, device), None, mesh)
    # Imported here, because importing torch's pipelines takes as long as the rest of the start.
    from trainer.parallel.pipeline import Pipeline

    group = mesh.get_group("pp")
    pipeline = Pipeline(stages, group, spec=spec, layout=layout, device=device)
    return Assembly(model, optimizer, pipeline, group, mesh)


def allocate(model: Model, *, weights: torch.device | str, buffers: torch.device | str) -> None:
    """Allocate a model without setting values.

    Buffers stay on the device even if weights are offloaded, because FSDP fetches only parameters.
    """
    model.to_empty(device=weights)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(buffers))
    model.keep_ties()


def loads_all_weights(run: TrainerRun) -> bool:
    """Return whether an attempt loads every weight before its first step.

    A checkpoint is read only if its names and shapes equal those of the model. Published weights
    are looked up by the model's names. So neither source omits a weight.
    """
    resume = run.attempt.resume
    if resume is None:
        return run.spec.model.initial_weights is not None
    return CheckpointPart.MODEL in resume.parts


def load_published_weights(
    run: TrainerRun, ranks: Ranks, *, writer: RunWriter, assembly: Assembly
) -> None:
    """Load published weights at the start of a job that sets `model.initial_weights`."""
    spec = run.spec
    if spec.model.initial_weights is None or run.attempt.resume is not None:
        return
    files = load_initial_weights(
        assembly.model, spec, roots=run.attempt.roots, group=ranks.cpu_group
    )
    writer.event(
        "weights_loaded",
        {"place": spec.model.initial_weights, "files": [file.model_dump() for file in files]},
    )
    refresh_scales(assembly.model)


def open_on_every_rank(
    run: TrainerRun, ranks: Ranks, *, writer: RunWriter, open_dataset: Callable[..., Dataset]
) -> Dataset:
    """Open the dataset on every rank; check that its digest is equal on all nodes."""
    opened: list[Dataset] = []

    def digest() -> str:
        opened.append(
            open_dataset(
                run.spec,
                roots=run.attempt.roots,
                cache_dir=run.cache_dir,
                on_progress=writer.beat,
            )
        )
        return opened[0].digest

    same_on_every_rank(ranks.cpu_group, digest, of="data", error=DataError)
    return opened[0]


WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def compute_deterministically() -> None:
    """Select deterministic algorithms in this process; call this before the first GPU product.

    Afterwards, an operation without a deterministic kernel raises RuntimeError.
    """
    # Streams that share a workspace may split a sum differently in each run.
    os.environ.setdefault(WORKSPACE, ":4096:8")
    # The setting covers attention: the backward passes of flash and memory-efficient attention sum
    # in a fixed order, and cuDNN is not used.
    torch.use_deterministic_algorithms(True)
    # The mode would also fill new tensors with NaN, which costs a pass over memory and only reveals
    # bugs.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # Autotuning depends on timing, so another run may select kernels that sum in another order.
    torch._inductor.config.deterministic = True
