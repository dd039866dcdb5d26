"""The stages of a pipeline: what a rank keeps of a model, and in which parts it runs it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from specs.job import JobSpec
from specs.layout import Layout
from specs.pipeline import Stage, stages_of
from trainer.model.base import Model
from trainer.model.decoder import Transformer

Stages = dict[int, Model]
"""The stages of this rank, by their number in the whole model."""


def keep_own_modules(model: Model, mesh: DeviceMesh, spec: JobSpec, layout: Layout) -> None:
    """Take out of a whole model, in place, what other ranks hold; names stay as they are."""
    assert isinstance(model, Transformer), "an own model is refused where a spec is checked"
    own = _own(mesh, spec, layout)
    _keep(model, {name for stage in own for name in stage.modules})


def split(model: Model, mesh: DeviceMesh, spec: JobSpec, layout: Layout) -> Stages:
    """Return the stages of this rank, which share the modules of `model`."""
    assert isinstance(model, Transformer), "an own model is refused where a spec is checked"
    return {stage.index: _part(model, stage.modules) for stage in _own(mesh, spec, layout)}


def _own(mesh: DeviceMesh, spec: JobSpec, layout: Layout) -> list[Stage]:
    rank = mesh.get_local_rank("pp")
    return [stage for stage in stages_of(spec, layout) if stage.rank == rank]


def _part(model: Transformer, names: Collection[str]) -> Transformer:
    # Not a copy of the module, which would share its table of hooks with the original.
    with torch.device("meta"):
        part = type(model)(replace(model.arch, n_layers=0), seq_len=model.positions.seq_len)
    part.arch, part.positions, part.layers = model.arch, model.positions, model.layers
    part.tok_embeddings, part.norm, part.output = model.tok_embeddings, model.norm, model.output
    _keep(part, names)
    return part


def _keep(part: Transformer, names: Collection[str]) -> None:
    layers = part.layers.items()
    part.layers = nn.ModuleDict({i: layer for i, layer in layers if f"layers.{i}" in names})
    for name in {"tok_embeddings", "norm", "output"}.difference(names):
        setattr(part, name, None)
