"""Checks a run before its ranks start, so that common errors appear within seconds.

Needs torch only for own models, which are built on the meta device, and for the initial weights of
hub models.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainer.checkpoint.first_checkpoint import with_first_checkpoint
from trainer.data.survey import check_input
from trainer.hugging_face.folder import WeightsFolder
from trainer.run import TrainerRun, open_run
from trainyard.spec.environment import plain_variables


def check_run(folder: Path, *, roots: Mapping[str, str]) -> None:
    """Reject a run whose spec, layout, storage places or input cannot work.

    Raises:
        LaunchError: the spec cannot run, a root is not defined on this node, or an own model cannot
            be built, does not fit the layout or the recipe, or lacks a layer or a matrix that the
            spec names.
        DataError: the input or the initial weights are missing, empty or outside of their root, or
            the weights belong to another model.
        CheckpointError: `checkpoint.start_from` names no committed checkpoint.
    """
    run = with_first_checkpoint(open_run(folder, world_size=None, roots=roots))
    check_input(run.spec, run.attempt.roots)
    if run.spec.model.initial_weights is not None and run.attempt.resume is None:
        _check_weights(run)
    if run.spec.model.is_own:
        _try_own_model(run)


def _check_weights(run: TrainerRun) -> None:
    if run.spec.model.hugging_face is None:
        WeightsFolder.of(run.spec, run.attempt.roots).check_ties(run.spec)
        return
    from trainer.hugging_face.hub_weights import HubWeights  # imports torch

    HubWeights.of(run.spec, run.attempt.roots).check_ties(run.spec)


def _try_own_model(run: TrainerRun) -> None:
    """Build an own model on the meta device, and check the plans that its code defines."""
    from trainer.loop.optimizer import refuse_unknown_matrices
    from trainer.models.families import build_model  # imports torch
    from trainer.models.hub.causal_model import CausalModel
    from trainer.models.own.data_dependence import stated_dependence
    from trainer.models.own.own_model import OwnModel
    from trainer.parallel.parallelize import try_stages
    from trainer.parallel.quantize import refuse_uneven_layers, refuse_unknown_names

    os.environ.update(plain_variables(run.spec.env))
    spec = run.spec.on_layout(run.attempt.layout)
    model = build_model(spec, run.attempt.roots)
    assert isinstance(model, OwnModel)
    refuse_uneven_layers(model, spec)
    if run.attempt.resume is None:
        refuse_unknown_names(model, spec)
        refuse_unknown_matrices(model, spec)
    if isinstance(model.net, CausalModel):
        loads = spec.model.initial_weights is not None or run.attempt.resume is not None
        model.net.check_exactness(draws=not loads)
    stated_dependence(model, spec)
    if spec.parallelism.pp > 1:
        try_stages(model, spec, run.attempt.layout)
