"""Verifies or scrubs a checkpoint: checks all checksums; `verify` also loads every tensor."""

from __future__ import annotations

import errno
from datetime import UTC, datetime
from pathlib import Path

from trainer.checkpoint.manifest import check_contents, check_sizes, read_checked_stored
from trainer.errors import CheckpointError
from trainer.operations.operation_folder import ProgressWriter, checkpoint_of
from trainer.storage.root import StoragePath, storage_root
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.operations import (
    OperationKind,
    OperationOrder,
    OperationOutcome,
    Verification,
)
from trainyard.run.checkpoint_faults import CheckpointFault


def verify(order: OperationOrder, operation: Path) -> OperationOutcome:
    """Verify or scrub the checkpoint in a task; return the result as an outcome.

    For a program's checkpoint, both kinds only compare the checksums of its files.

    Raises:
        LaunchError: the task does not name exactly one checkpoint below its root.
        CheckpointError: the storage cannot be read, which proves nothing about the checkpoint.
    """
    folder, point = checkpoint_of(order)
    wants_load = order.task.kind == OperationKind.VERIFY
    try:
        manifest = read_checked_stored(folder, point, root=storage_root(order.root_path))
        loads = wants_load and isinstance(manifest, Manifest)
        progress = ProgressWriter(operation, total=manifest.size * (2 if loads else 1))
        for file in manifest.files:
            progress.begin(f"compares {file.path}")
            check_sizes(folder, [file])
            check_contents(folder, [file])
            progress.advance(file.size)
        found = Verification(ok=True, at=datetime.now(UTC))
        if wants_load and isinstance(manifest, Manifest):
            found = _loaded(
                folder, point, manifest=manifest, progress=progress, operation=operation
            )
    except CheckpointError as error:
        fault = _fault_of(error)
        if fault is None:
            raise
        found = Verification(ok=False, at=datetime.now(UTC), fault=fault, message=str(error)[:2000])
    message = _summary(found)
    if found.ok and wants_load and found.loaded_at is None:
        message += "; nothing was loaded: only the program knows what its files hold"
    return OperationOutcome(outcome="succeeded", message=message, verification=found)


def _fault_of(error: CheckpointError) -> CheckpointFault | None:
    """Return the fault that an error proves; None if it proves nothing about the checkpoint.

    A load retries after EIO. A verification reports EIO as damage, because the sectors of the file
    are unreadable.
    """
    cause = error.__cause__
    if error.fault is None and isinstance(cause, OSError) and cause.errno == errno.EIO:
        return CheckpointFault.FILE_DAMAGED
    return error.fault


def _loaded(
    folder: StoragePath,
    point: ResumePoint,
    *,
    manifest: Manifest,
    progress: ProgressWriter,
    operation: Path,
) -> Verification:
    from trainer.operations.load_check import load_everything  # imports torch

    # Not the writer's number of ranks, so that the load must reshard.
    ranks = 2 if manifest.layout.world_size == 1 else 1
    tensors = load_everything(folder, point, ranks=ranks, progress=progress, operation=operation)
    now = datetime.now(UTC)
    return Verification(ok=True, at=now, loaded_at=now, loaded_on=ranks, tensors=tensors)


def _summary(found: Verification) -> str:
    if not found.ok:
        return f"{found.fault}: {found.message}"
    if found.loaded_at is None:
        return "every checksum is right"
    ranks = "1 rank" if found.loaded_on == 1 else f"{found.loaded_on} ranks"
    return f"every checksum is right, and all {found.tensors} tensors load on {ranks}"
