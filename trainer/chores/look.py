"""Looks at a checkpoint: all checksums, and for `verify` a load of every tensor on other ranks."""

from __future__ import annotations

import errno
from datetime import UTC, datetime
from pathlib import Path

from specs.attempt import ResumePoint
from specs.checkpoint import COMMITTED, MANIFEST, Manifest, ManifestFile
from specs.checkpoint_faults import CheckpointFault
from specs.chores import ChoreKind, ChoreOrder, ChoreOutcome, Verification
from trainer.checkpoint.store import (
    check_counters,
    check_links,
    file_digest,
    metadata_digest,
    read_manifest,
    storage_errors,
)
from trainer.chores.main import Progress, checkpoint_of
from trainer.errors import CheckpointError
from trainer.storage import StoragePath, storage_root


class FaultFoundError(Exception):
    """Something is wrong with a checkpoint; what, by name."""

    def __init__(self, fault: CheckpointFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def look_at(order: ChoreOrder, chore: Path) -> ChoreOutcome:
    """Verify or scrub the checkpoint of a task, and return what was found.

    Raises:
        LaunchError: the task is not of one checkpoint beneath its root.
        CheckpointError: storage could not be read, which says nothing about the checkpoint.
    """
    folder, point = checkpoint_of(order)
    loads = order.task.kind == ChoreKind.VERIFY
    try:
        root = storage_root(order.root_path)
        manifest = check_manifest(folder, point, root)
        progress = Progress(chore, total=manifest.size * (2 if loads else 1))
        for file in manifest.files:
            progress.begin(f"compares {file.path}")
            check_file(folder / file.path, file)
            progress.advance(file.size)
        found = _loaded(folder, point, manifest, progress, chore) if loads else _whole()
    except FaultFoundError as fault:
        found = Verification(
            ok=False, at=datetime.now(UTC), fault=fault.fault, message=str(fault)[:2000]
        )
    return ChoreOutcome(outcome="succeeded", message=_told(found), verification=found)


def fault_of(fault: CheckpointFault, error: CheckpointError) -> FaultFoundError:
    """Return the fault that an error names, else the one given.

    Raises:
        CheckpointError: the error itself, where storage refuses and so nothing is known.
    """
    if error.of_storage:
        raise error
    return FaultFoundError(error.fault or fault, str(error))


def check_manifest(folder: StoragePath, point: ResumePoint, root: StoragePath) -> Manifest:
    """Return the manifest of the very checkpoint that is meant.

    Raises:
        FaultFoundError: it is not committed, damaged, or another one, its counters disagree, or a
            file leads out of the storage root.
        CheckpointError: storage refuses.
    """
    with storage_errors("read", folder):
        committed = (folder / COMMITTED).exists()
    if not committed:
        raise FaultFoundError(CheckpointFault.NOT_COMMITTED, f"{folder} has no {COMMITTED}")
    try:
        check_links(folder, (MANIFEST, COMMITTED), root)
        manifest = read_manifest(folder)
        check_counters(manifest, folder)
        check_links(folder, (file.path for file in manifest.files), root)
        found = (manifest.checkpoint_id, manifest.train_state.step, metadata_digest(manifest))
    except CheckpointError as error:
        raise fault_of(CheckpointFault.MANIFEST_DAMAGED, error) from error
    if found != (point.checkpoint_id, point.step, point.metadata_digest):
        message = f"{folder} holds {found[0]} with metadata {found[2]}, not {point.checkpoint_id}"
        raise FaultFoundError(CheckpointFault.ANOTHER_CHECKPOINT, message)
    return manifest


def check_file(path: StoragePath, file: ManifestFile) -> None:
    """Compare a file with its line in the manifest, reading it whole.

    Raises:
        FaultFoundError: it is missing, too short or too long, or a byte differs.
        CheckpointError: it cannot be read for a reason that is not its own.
    """
    with storage_errors("read", path):
        try:
            size = path.stat().st_size
            if size != file.size:
                message = f"{path} has {size:,} bytes instead of {file.size:,}"
                raise FaultFoundError(CheckpointFault.FILE_SIZE, message)
            digest = file_digest(path)
        except FileNotFoundError as error:
            raise FaultFoundError(CheckpointFault.FILE_MISSING, f"{path} is missing") from error
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            message = f"{path} cannot be read: {error.strerror}"
            raise FaultFoundError(CheckpointFault.FILE_DAMAGED, message) from error
    if digest != file.xxh3_128:
        message = f"{path} is damaged: its checksum is {digest} instead of {file.xxh3_128}"
        raise FaultFoundError(CheckpointFault.FILE_DAMAGED, message)


def _whole() -> Verification:
    return Verification(ok=True, at=datetime.now(UTC))


def _loaded(
    folder: StoragePath, point: ResumePoint, manifest: Manifest, progress: Progress, chore: Path
) -> Verification:
    from trainer.chores.load import load_everything  # with torch

    # Another number than wrote it, so that pieces are really cut or put together.
    ranks = 2 if manifest.layout.world_size == 1 else 1
    tensors = load_everything(folder, point, ranks=ranks, progress=progress, chore=chore)
    now = datetime.now(UTC)
    return Verification(ok=True, at=now, loaded_at=now, loaded_on=ranks, tensors=tensors)


def _told(found: Verification) -> str:
    if not found.ok:
        return f"{found.fault}: {found.message}"
    if found.loaded_at is None:
        return "every checksum is right"
    ranks = "1 rank" if found.loaded_on == 1 else f"{found.loaded_on} ranks"
    return f"every checksum is right, and all {found.tensors} tensors load on {ranks}"
