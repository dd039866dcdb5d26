"""Where an attempt starts: at step 0, or with what it takes over of a checkpoint."""

from __future__ import annotations

import logging

from specs.attempt import ResumePoint
from specs.checkpoint import DataState, Manifest, TrainState
from specs.data_order import ORDER_FIELDS
from specs.parts import ALL_PARTS, CheckpointPart, left_out, start_state
from trainer.assembly import Assembly
from trainer.checkpoint.checkpointer import Checkpointer
from trainer.counters import leave_out
from trainer.data.dataset import Dataset
from trainer.errors import CheckpointError, DataError
from trainer.record import Recorder
from trainer.run import Run

logger = logging.getLogger("trainer")


def starting_state(
    run: Run,
    recorder: Recorder,
    checkpointer: Checkpointer,
    assembly: Assembly,
    dataset: Dataset,
) -> TrainState:
    """Return the counters to start with, after loading what is to be taken over, if anything is.

    Raises:
        DataError: the data go on, but the checkpoint was trained on others.
        CheckpointError: the checkpoint cannot be loaded, or the data go on, but in the order of
            another seed.
    """
    resume = run.attempt.resume
    if resume is None:
        start = TrainState(step=0, tokens=0, data=DataState(dataset_digest=dataset.digest))
        return leave_out(start, run)
    manifest = checkpointer.load(assembly.model, assembly.optimizer, resume)
    if CheckpointPart.DATA in resume.parts:
        _check_data(manifest, run, resume, dataset)
    state = start_state(manifest.train_state, resume.parts, dataset_digest=dataset.digest)
    recorder.step = state.step
    recorder.checkpoint_id = manifest.checkpoint_id
    recorder.event(
        "resumed",
        {
            "checkpoint_id": manifest.checkpoint_id,
            "from_layout": manifest.layout.model_dump(),
            "layout": run.attempt.layout.model_dump(),
            "parts": list(resume.parts),
            "not_exact": list(left_out(resume.parts)),
        },
    )
    if resume.parts != ALL_PARTS:
        logger.info("took %s of %s", ", ".join(resume.parts), manifest.checkpoint_id)
    return leave_out(state, run)


def _check_data(manifest: Manifest, run: Run, resume: ResumePoint, dataset: Dataset) -> None:
    """Refuse to go on at a position in another order of other data."""
    before = manifest.train_state.data.dataset_digest
    if before not in dataset.same_order:
        fields = ", ".join(field for field in ORDER_FIELDS if field != "training.seed")
        raise DataError(
            f"{manifest.checkpoint_id} was trained on data with digest {before}, but the data here "
            f"has {dataset.digest}: one of {fields} is another one, or the files that they name "
            "have changed; legal: the former ones, or a fork that leaves data out"
        )
    if manifest.seed != run.spec.training.seed:
        raise CheckpointError(
            f"{manifest.checkpoint_id} was trained with seed={manifest.seed}, "
            f"but training.seed={run.spec.training.seed}",
            path=resume.path,
        )
