"""Looks at a run before its ranks start, without torch: what is wrong here fails in a second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainer.data.survey import check_input
from trainer.hugging_face.folder import WeightsFolder
from trainer.run import open_run


def check_run(folder: Path, *, roots: Mapping[str, str]) -> None:
    """Refuse a run whose spec, layout, places or input cannot work.

    Raises:
        LaunchError: the spec cannot run, a root is not defined here, or the weights to start from
            are those of another model.
        DataError: the input is missing, empty or outside its root; so for weights to start from.
    """
    run = open_run(folder, world_size=None, roots=roots)
    check_input(run.spec, run.attempt.roots)
    if run.spec.model.initial_weights is not None and run.attempt.resume is None:
        WeightsFolder.of(run.spec, run.attempt.roots)
