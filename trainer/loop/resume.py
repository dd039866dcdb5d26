"""Where an attempt starts: at step 0, or with what it takes over of a checkpoint."""

from __future__ import annotations

import logging
from functools import partial

from trainer.checkpoint.manager import CheckpointManager
from trainer.data.dataset import Dataset
from trainer.loop.build import Assembly
from trainer.loop.resume_checks import check_takeover
from trainer.loop.train_state import leave_out
from trainer.metrics.run_writer import Recorder
from trainer.run import Run
from trainyard.protocol.manifest import DataState, TrainState
from trainyard.protocol.resume_parts import ALL_PARTS, left_out, start_state

logger = logging.getLogger("trainer")


def starting_state(
    run: Run,
    recorder: Recorder,
    checkpoints: CheckpointManager,
    assembly: Assembly,
    dataset: Dataset,
    code_digest: str | None,
) -> TrainState:
    """Return the counters to start with, after loading what is to be taken over, if anything is.

    Raises:
        DataError: the data go on, but the checkpoint was trained on others.
        CheckpointError: the checkpoint cannot be loaded, or was written under other settings.
    """
    resume = run.attempt.resume
    if resume is None:
        start = TrainState(step=0, tokens=0, data=DataState(dataset_digest=dataset.digest))
        return leave_out(start, run)
    compare = partial(
        check_takeover,
        run=run,
        dataset_digest=dataset.digest,
        same_order=dataset.same_order,
        code_digest=code_digest,
    )
    manifest = checkpoints.load(assembly.model, assembly.optimizer, resume, admit=compare)
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
            **compare(manifest).record,
        },
    )
    if resume.parts != ALL_PARTS:
        logger.info("took %s of %s", ", ".join(resume.parts), manifest.checkpoint_id)
    return leave_out(state, run)
