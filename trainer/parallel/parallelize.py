"""Applies the layout to a model, by an ordered recipe that is the same for all models."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from torch.distributed.device_mesh import DeviceMesh

from trainer.errors import LaunchError
from trainer.models.base import DataDependence, Model
from trainer.models.own.data_dependence import BlockOrder, Trial, find_data_dependence
from trainer.models.own.own_model import OwnModel
from trainer.models.own.parameter_rules import refuse_changed_requirements
from trainer.parallel.activation_checkpoint import checkpoint_activations
from trainer.parallel.compile import compile_blocks
from trainer.parallel.fsdp import shard
from trainer.parallel.inputs import take_tokens
from trainer.parallel.mesh import MeshCoordinates
from trainer.parallel.quantize import quantize_linear_layers
from trainyard.axes import AXES
from trainyard.axes.pp import stages_of
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.precision import shards_of_rows
from trainyard.training.pipeline_stages import Stage

NOWHERE = DataDependence.NOWHERE
WRAPPING = frozenset({"dp_replicate", "dp_shard", "pp"})
"""Axes that wrap blocks or stages; they are applied last. Every other axis has a module of the same
name in `trainer.parallel`, whose `apply` changes single modules of the model.
"""


def parallelize(model: Model, mesh: DeviceMesh, *, spec: JobSpec, layout: Layout) -> Stages:
    """Parallelize a model, usually one on the meta device, over the mesh, in place.

    Returns:
        This rank's pipeline stages, by number; without pipeline parallelism, only the model. The
        model keeps only the modules of this rank.

    Raises:
        LaunchError: an axis, the recipe or the compiler cannot be applied on this machine, or an
            own model does not fit the layout.
    """
    # The order matters. Modules are changed from the inside out: first this rank's set of modules
    # and tokens, then single layers, then blocks, then stages.
    sharded = spec.is_sharded(layout)
    own = model if isinstance(model, OwnModel) else None
    trial = find_data_dependence(own, spec) if own is not None else Trial()
    if layout.pp > 1:
        keep_own_modules(model, mesh, spec=spec, layout=layout)
    take_tokens(model, spec, layout=layout, coordinates=MeshCoordinates.of(mesh.get_rank(), layout))
    # Before TP, because torchao replaces `nn.Linear` modules, and TP then shards the new modules.
    quantize_linear_layers(
        model,
        spec,
        device_type=mesh.device_type,
        # FSDP replaces a missing gradient by zeros, except for weights gathered in float8.
        shards=shards_of_rows(spec, layout) if model.data_dependence == NOWHERE else None,
    )
    # TP first and FSDP last, because TP turns weights into DTensors and FSDP shards these DTensors
    # further.
    for axis in AXES:
        if layout.size(axis.name) > 1 and axis.name not in WRAPPING:
            import_module(f"trainer.parallel.{axis.name}").apply(model, mesh, spec, layout)
    blocks = list(model.layers.values())
    # Compile after checkpointing, so that the compiler sees the recomputation and fuses it into
    # backward.
    checkpoint_activations(blocks, spec.activation_checkpoint, own_randomness=own is not None)
    # FSDP after compile, so that FSDP's hooks gather weights outside of the compiled graphs.
    compile_blocks(
        blocks,
        spec.compile,
        device_type=mesh.device_type,
        recipe=spec.quantization.recipe,
        whole=model.data_dependence == NOWHERE,
    )
    stages = split(model, mesh, spec=spec, layout=layout) if layout.pp > 1 else {0: model}
    if sharded:
        for stage in stages.values():
            shard(stage, mesh, spec=spec, layout=layout)
    if own is not None:
        if layout.pp > 1 and layout.dp > 1 and trial.changed:
            raise LaunchError(
                f"parallelism.pp={layout.pp} on {layout.dp} data-parallel ranks, but forward of "
                f"the own model changes the buffer {min(trial.changed)}; legal: pp=1, or one such "
                "rank"
            )
        _watch(own, stages, spec=spec, trial=trial, sharded=sharded)
    return stages


def _watch(
    own: OwnModel, stages: Mapping[int, Model], *, spec: JobSpec, trial: Trial, sharded: bool
) -> None:
    """Make an own model refuse changes during training that would differ between ranks."""
    if trial.used is not None:
        own.used_parameters = frozenset(f"net.{name}" for name in trial.used)
    if trial.changed is not None:
        own.changed_buffers = frozenset(f"net.{name}" for name in trial.changed)
    for stage in stages.values():
        refuse_changed_requirements(stage)
        assert isinstance(stage, OwnModel), "a part of an own model is one"
        if sharded and own.data_dependence != DataDependence.ANYWHERE:
            BlockOrder(stage, spec, trial.orders)


Stages = dict[int, Model]
"""Pipeline stages of this rank, by their number in the whole model."""


def keep_own_modules(model: Model, mesh: DeviceMesh, *, spec: JobSpec, layout: Layout) -> None:
    """Remove other pipeline ranks' modules from a model, in place; names do not change.

    Raises:
        LaunchError: an own model does not run in these stages; raised on all ranks.
    """
    if isinstance(model, OwnModel):
        try_stages(model, spec, layout)
    own = _own(mesh, spec, layout)
    model.keep({name for stage in own for name in stage.modules})


def split(model: Model, mesh: DeviceMesh, *, spec: JobSpec, layout: Layout) -> Stages:
    """Return the stages of this rank; they share the modules of `model`."""
    return {stage.index: model.part(stage.modules) for stage in _own(mesh, spec, layout)}


def try_stages(model: OwnModel, spec: JobSpec, layout: Layout) -> None:
    """Run an own model stage by stage on the meta device, to check shapes and dtypes.

    Raises:
        LaunchError: a stage fails, or returns an output that the next stage does not accept.
    """
    stages = stages_of(spec.facts(layout))
    model.try_in_parts([stage.modules for stage in stages])


def _own(mesh: DeviceMesh, spec: JobSpec, layout: Layout) -> list[Stage]:
    rank = mesh.get_local_rank("pp")
    return [stage for stage in stages_of(spec.facts(layout)) if stage.rank == rank]
