"""What a rank trains with: its share of the model, the optimizer of it, and what runs the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from trainer.distributed import collective_timeout
from trainer.loop.optimizer import build_optimizer, materialize_state
from trainer.loop.step import ForwardBackward, MicroBatchLoop
from trainer.models.base import Model
from trainer.models.families import build_model
from trainer.models.initial_weights import init_weights
from trainer.parallel.mesh import build_mesh, set_timeouts
from trainer.parallel.parallelize import parallelize
from trainer.parallel.quantize import keep_scales_fresh, refresh_scales, refuse_uneven_layers
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout


@dataclass(frozen=True)
class Assembly:
    """The parts of training on one rank, which belong together."""

    model: Model
    """All parameters that this rank holds, under the names that they have in the whole model."""
    optimizer: Optimizer
    """Changes these parameters; it has its state."""
    forward_backward: ForwardBackward
    """Gives these parameters their gradients."""
    stages: ProcessGroup | None
    """The ranks that hold the other parameters, under pipeline parallelism."""
    mesh: DeviceMesh
    """All ranks of training, by axis."""


def assemble(
    spec: JobSpec,
    layout: Layout,
    device: torch.device,
    *,
    roots: Mapping[str, str] | None = None,
) -> Assembly:
    """Return the model with its initial weights, and all that trains it, on this rank's device.

    All ranks call it together, with a process group in place. `roots` gives the path of each named
    root, for the code of an own model.
    """
    spec = spec.on_layout(layout)
    model = build_model(spec, roots)
    refuse_uneven_layers(model, spec)
    mesh = build_mesh(layout, device.type)
    set_timeouts(mesh, collective_timeout(spec.guard.hang_seconds))
    stages = parallelize(model, mesh, spec, layout)
    allocate(model, weights="cpu" if spec.optimizer.cpu_offload else device, buffers=device)
    init_weights(model, spec.training.seed)
    refresh_scales(model)
    optimizer = build_optimizer(model, spec)
    materialize_state(optimizer)
    keep_scales_fresh(model, optimizer)
    if layout.pp == 1:
        return Assembly(model, optimizer, MicroBatchLoop(model, spec, device), None, mesh)
    # Importing torch's pipelines takes as long as the rest of a start: only those pay who have one.
    from trainer.parallel.pipeline import Pipeline

    group = mesh.get_group("pp")
    pipeline = Pipeline(stages, group, spec, layout, device)
    return Assembly(model, optimizer, pipeline, group, mesh)


def allocate(model: Model, *, weights: torch.device | str, buffers: torch.device | str) -> None:
    """Give a model memory, without values; FSDP fetches offloaded weights, and nothing else."""
    model.to_empty(device=weights)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(buffers))
    model.keep_ties()
