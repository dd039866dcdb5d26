"""Checkpoints of a script's run: their storage, and the report of each commit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainyard.run.checkpoints.program_manifest import ProgramManifest
from trainyard.run.checkpoints.program_save import ProgramCheckpoints
from trainyard.run.checkpoints.program_storage import (
    JobStorage,
    LocalStorage,
    UnusableCheckpointError,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.failures import Failure, FailureReason, LoadFailure
from trainyard.run.record_files import append_record, create_record
from trainyard.run.records import EventRecord
from trainyard.run.session.process_place import ProcessPlace

LOCAL_FOLDER = "checkpoints"
"""Folder in the working directory with the checkpoints of a script without a job."""


def job_checkpoints(
    spec: Mapping[str, Any],
    attempt: Mapping[str, Any],
    place: ProcessPlace,
    *,
    files: RunDirectory,
    before_report: Callable[[], None],
) -> ProgramCheckpoints:
    """Return the checkpoints of an attempt, as used by this process.

    Args:
        spec: spec of the job, from `spec.json`.
        attempt: the launch, from `attempt.json`.
        place: rank of this process.
        files: the run directory; rank 0 appends each commit to its events.
        before_report: called on rank 0 before each append, because the metrics up to the
            checkpoint's step must be written before the commit is reported.

    Raises:
        ValueError: this node lacks the job's storage root, or the root is a bucket.
    """
    section = (attempt.get("overrides") or {}).get("checkpoint") or spec.get("checkpoint") or {}
    name = section.get("root", "checkpoints")
    root = (attempt.get("roots") or {}).get(name)
    if not isinstance(root, str):
        raise ValueError(f"checkpoint.root={name!r}: this node has no root of that name")
    if "://" in root:
        raise ValueError(
            f"checkpoint.root={name!r} is the bucket {root}, and a program saves into a folder; "
            "legal: a root that is a folder on each node"
        )
    resume = attempt.get("resume") or {}

    def report(manifest: ProgramManifest) -> None:
        before_report()
        line = EventRecord(
            time=time.time(),
            kind="checkpoint_committed",
            step=manifest.step,
            data=vars(manifest),
        )
        append_record(files.events, line)
        files.committing.unlink(missing_ok=True)

    storage = JobStorage(
        Path(root),
        attempt["job_id"],
        attempt["attempt"],
        parent=resume.get("checkpoint_id"),
        parent_path=resume.get("path"),
    )
    return ProgramCheckpoints(
        storage, place.rank, place.world_size, report, before_commit=files.committing.touch
    )


def local_checkpoints(place: ProcessPlace, variables: Mapping[str, str]) -> ProgramCheckpoints:
    """Return the checkpoints of a script without a job, in the working directory.

    Raises:
        RuntimeError: the script's processes are not all of one torchrun on one machine.
    """
    if place.world_size > 1 and variables.get("LOCAL_WORLD_SIZE") != str(place.world_size):
        raise RuntimeError(
            f"{place.world_size} processes that are not all of one torchrun on one machine save "
            "together only in a job; legal: trainyard submit, or one machine"
        )
    # All ranks of one torchrun have the same parent process, and each run has another one.
    storage = LocalStorage(Path.cwd() / LOCAL_FOLDER, f"{os.getppid()}-")
    return ProgramCheckpoints(storage, place.rank, place.world_size, lambda _: None)


def resume_folder(
    checkpoints: ProgramCheckpoints, attempt: Mapping[str, Any], *, error: Path | None
) -> Path | None:
    """Return the folder of the parent checkpoint; None without one.

    Args:
        checkpoints: checkpoints of this process.
        attempt: the launch, from `attempt.json`.
        error: file for the failure if the checkpoint is unusable, so that the server selects an
            older checkpoint; None without a job.

    Raises:
        UnusableCheckpointError: the checkpoint is missing, changed or incomplete.
        OSError: the storage reports an error. `ProgramCheckpoints.resume_from` lists other errors.
    """
    try:
        return checkpoints.resume_from()
    except UnusableCheckpointError as found:
        if error is not None:
            parent = (attempt.get("resume") or {}).get("checkpoint_id", "")
            failure = Failure(
                reason=FailureReason.CHECKPOINT_ERROR,
                message=str(found),
                rank=checkpoints.rank,
                load=LoadFailure(checkpoint_id=parent, fault=found.fault),
            )
            create_record(error, failure)
        raise
