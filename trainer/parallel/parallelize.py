"""How a model is spread over ranks: an ordered recipe that the model itself knows nothing of."""

from __future__ import annotations

from importlib import import_module

from torch.distributed.device_mesh import DeviceMesh

from trainer.models.base import Model
from trainer.models.own import OwnModel
from trainer.parallel.activation_checkpoint import checkpoint_activations
from trainer.parallel.compile import compile_blocks
from trainer.parallel.fsdp import shard
from trainer.parallel.mesh import Place
from trainer.parallel.quantize import quantize_linear_layers
from trainer.parallel.stages import Stages, keep_own_modules, split
from trainer.parallel.tokens import take_tokens
from trainyard.axes import AXES
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout

WRAPPING = frozenset({"dp_replicate", "dp_shard", "pp"})
"""Axes that wrap blocks or stages, and so come last. Every other axis has a module of its name in
`trainer.parallel`, whose `apply` changes single modules of the model."""


def parallelize(model: Model, mesh: DeviceMesh, spec: JobSpec, layout: Layout) -> Stages:
    """Spread a model, usually one on the meta device, over the mesh, in place.

    The model keeps what this rank holds. The stages that the rank runs are returned by number; the
    model itself is the only one without pipeline parallelism.

    The order matters: what changes a single module comes before what wraps it, and sharding is
    last.
    """
    sharded = spec.is_sharded(layout)
    if layout.pp > 1:
        keep_own_modules(model, mesh, spec, layout)
    take_tokens(model, spec, layout, Place.of(mesh.get_rank(), layout))
    # Weights that wait in the host's memory have no scale on the device before they are there.
    gathers = sharded and not spec.optimizer.cpu_offload
    quantize_linear_layers(model, spec, device_type=mesh.device_type, gathers=gathers)
    for axis in AXES:
        if layout.size(axis.name) > 1 and axis.name not in WRAPPING:
            import_module(f"trainer.parallel.{axis.name}").apply(model, mesh, spec, layout)
    blocks = list(model.layers.values())
    own = isinstance(model, OwnModel)
    checkpoint_activations(blocks, spec.activation_checkpoint, own_randomness=own)
    compile_blocks(
        blocks, spec.compile, device_type=mesh.device_type, recipe=spec.quantization.recipe
    )
    stages = split(model, mesh, spec, layout) if layout.pp > 1 else {0: model}
    if sharded:
        for stage in stages.values():
            shard(stage, mesh, spec, layout)
    return stages
