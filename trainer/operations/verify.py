"""Verifies or scrubs a checkpoint: all checksums; `verify` loads every tensor on other ranks."""

from __future__ import annotations

import errno
from datetime import UTC, datetime
from pathlib import Path

from trainer.checkpoint.manifest import check_contents, check_sizes, read_checked
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
    """Verify or scrub the checkpoint of a task, and return what was found.

    Raises:
        LaunchError: the task is not of one checkpoint beneath its root.
        CheckpointError: storage could not be read, which proves nothing about the checkpoint.
    """
    folder, point = checkpoint_of(order)
    loads = order.task.kind == OperationKind.VERIFY
    try:
        manifest = read_checked(folder, point, root=storage_root(order.root_path))
        progress = ProgressWriter(operation, total=manifest.size * (2 if loads else 1))
        for file in manifest.files:
            progress.begin(f"compares {file.path}")
            check_sizes(folder, [file])
            check_contents(folder, [file])
            progress.advance(file.size)
        found = _loaded(folder, point, manifest, progress, operation) if loads else _whole()
    except CheckpointError as error:
        fault = _fault_of(error)
        if fault is None:
            raise
        found = Verification(ok=False, at=datetime.now(UTC), fault=fault, message=str(error)[:2000])
    return OperationOutcome(outcome="succeeded", message=_told(found), verification=found)


def _fault_of(error: CheckpointError) -> CheckpointFault | None:
    """Return what an error proves of the checkpoint; None where it proves nothing.

    A load tries again after an I/O error, which may pass. A look has the time to be strict: a file
    with sectors that cannot be read is damaged.
    """
    cause = error.__cause__
    if error.fault is None and isinstance(cause, OSError) and cause.errno == errno.EIO:
        return CheckpointFault.FILE_DAMAGED
    return error.fault


def _whole() -> Verification:
    return Verification(ok=True, at=datetime.now(UTC))


def _loaded(
    folder: StoragePath,
    point: ResumePoint,
    manifest: Manifest,
    progress: ProgressWriter,
    operation: Path,
) -> Verification:
    from trainer.operations.load_check import load_everything  # with torch

    # Another number than wrote it, so that pieces are really cut or put together.
    ranks = 2 if manifest.layout.world_size == 1 else 1
    tensors = load_everything(folder, point, ranks=ranks, progress=progress, operation=operation)
    now = datetime.now(UTC)
    return Verification(ok=True, at=now, loaded_at=now, loaded_on=ranks, tensors=tensors)


def _told(found: Verification) -> str:
    if not found.ok:
        return f"{found.fault}: {found.message}"
    if found.loaded_at is None:
        return "every checksum is right"
    ranks = "1 rank" if found.loaded_on == 1 else f"{found.loaded_on} ranks"
    return f"every checksum is right, and all {found.tensors} tensors load on {ranks}"
