"""The stages of a pipeline: what a rank keeps of a model, and in which parts it runs it."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh

from trainer.models.base import Model
from trainer.models.own import OwnModel
from trainyard.axes.pp import stages_of
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.training.pipeline_stages import Stage

Stages = dict[int, Model]
"""The stages of this rank, by their number in the whole model."""


def keep_own_modules(model: Model, mesh: DeviceMesh, spec: JobSpec, layout: Layout) -> None:
    """Take out of a whole model, in place, what other ranks hold; names stay as they are.

    Raises:
        LaunchError: an own model does not run in such stages; all ranks find out alike.
    """
    if isinstance(model, OwnModel):
        try_stages(model, spec, layout)
    own = _own(mesh, spec, layout)
    model.keep({name for stage in own for name in stage.modules})


def split(model: Model, mesh: DeviceMesh, spec: JobSpec, layout: Layout) -> Stages:
    """Return the stages of this rank, which share the modules of `model`."""
    return {stage.index: model.part(stage.modules) for stage in _own(mesh, spec, layout)}


def try_stages(model: OwnModel, spec: JobSpec, layout: Layout) -> None:
    """Run an own model stage by stage without memory: what goes in and out must fit.

    Raises:
        LaunchError: it does not, or a stage fails.
    """
    stages = stages_of(spec.facts(layout))
    model.try_in_parts([stage.modules for stage in stages])


def _own(mesh: DeviceMesh, spec: JobSpec, layout: Layout) -> list[Stage]:
    rank = mesh.get_local_rank("pp")
    return [stage for stage in stages_of(spec.facts(layout)) if stage.rank == rank]
