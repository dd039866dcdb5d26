"""The checkpoint from which a job starts that has none of its own (`checkpoint.start_from`)."""

from __future__ import annotations

from dataclasses import replace

from trainer.checkpoint.manifest import check_links, metadata_digest, read_manifest
from trainer.errors import CheckpointError
from trainer.run import TrainerRun
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.resume_parts import ALL_PARTS, CheckpointPart
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.checkpoints.checkpoint_names import COMMITTED, MANIFEST


def with_first_checkpoint(run: TrainerRun) -> TrainerRun:
    """Return the run with `checkpoint.start_from` as its resume point, unless it has another one.

    All parts are taken over except the position in the data.

    Raises:
        CheckpointError: `checkpoint.start_from` names no committed checkpoint, its manifest has
            another step than the folder's name, or its files are links to targets outside of the
            storage root.
    """
    path = run.spec.checkpoint.start_from
    if path is None or run.attempt.resume is not None:
        return run
    folder = run.checkpoint_root / path
    check_links(folder, (MANIFEST, COMMITTED), run.checkpoint_root)
    manifest = read_manifest(folder)
    if manifest.step != run.spec.checkpoint.start_step:  # the server counts from the folder's name
        raise CheckpointError(
            f"{folder} is another checkpoint: its step is {manifest.step}; give the folder the "
            "name that it had",
            path=str(folder / MANIFEST),
            fault=CheckpointFault.ANOTHER_CHECKPOINT,
        )
    resume = ResumePoint(
        checkpoint_id=manifest.checkpoint_id,
        path=path,
        step=manifest.step,
        metadata_digest=metadata_digest(manifest),
        parts=tuple(part for part in ALL_PARTS if part != CheckpointPart.DATA),
    )
    return replace(run, attempt=run.attempt.model_copy(update={"resume": resume}))
