"""Raises the fence above a lost attempt, and reads the manifests of its unreported commits."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trainer.checkpoint.fence import raised_fence
from trainer.checkpoint.manifest import (
    check_content,
    check_counters,
    check_links,
    check_sizes,
    metadata_digest,
    stored_manifests,
)
from trainer.errors import CheckpointError, LaunchError, OutrunError
from trainer.operations.operation_folder import JOB_ID, ProgressWriter, check_root
from trainer.storage.io_errors import read_small, storage_errors
from trainer.storage.root import StoragePath, storage_root
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.operations import (
    MAX_RECOVERED_BYTES,
    OperationOrder,
    OperationOutcome,
)
from trainyard.run.checkpoints.checkpoint_names import MANIFEST, checkpoint_path
from trainyard.run.checkpoints.program_manifest import ProgramManifest


def recover(order: OperationOrder, operation: Path) -> OperationOutcome:
    """Raise the fence above a lost attempt; return commits that the catalog lacks.

    The newest commits come first, up to `MAX_RECOVERED_BYTES` of manifests. The checks here read no
    tensors; a later load compares the tensors' checksums.

    Raises:
        LaunchError: the task names no attempt.
        CheckpointError: the root has another UUID, or the storage reports an error.
    """
    task, job_id = order.task.recover, order.task.job_id
    if task is None or not JOB_ID.fullmatch(job_id):
        raise LaunchError("the task names no attempt to recover")
    root = storage_root(order.root_path)
    check_root(root, order.root_id)
    # OutrunError: a later attempt has raised the fence further, which also fences the lost attempt.
    with suppress(OutrunError), raised_fence(root / job_id, task.fence):
        pass
    committed = stored_manifests(root, job_id, attempt=task.attempt)
    unreported = [m for m in committed if m.step > task.after_step]
    progress = ProgressWriter(operation, total=len(unreported))
    texts: list[str] = []
    damaged, room = 0, MAX_RECOVERED_BYTES
    for manifest in reversed(unreported):
        progress.begin(f"reads step-{manifest.step}")
        progress.advance(1)
        text = _manifest_if_whole(root, manifest)
        damaged += text is None
        if text is not None and (room := room - len(text.encode())) >= 0:
            texts.append(text)
    left = len(unreported) - damaged - len(texts)
    return OperationOutcome(
        outcome="succeeded",
        message=f"{len(texts)} found of attempt {task.attempt} after step {task.after_step}, "
        f"{damaged} damaged, {left} without room in the report",
        commits=tuple(texts),
    )


def _manifest_if_whole(root: StoragePath, manifest: Manifest | ProgramManifest) -> str | None:
    """Return the manifest's text; None if sizes, links, counters or metadata are wrong.

    Raises:
        CheckpointError: the storage reports an error, which proves nothing about the checkpoint.
    """
    folder = root / checkpoint_path(manifest.job_id, manifest.attempt, manifest.step)
    try:
        check_links(folder, (MANIFEST, *(file.path for file in manifest.files)), root)
        check_counters(manifest, folder)
        check_sizes(folder, manifest.files)
        if isinstance(manifest, Manifest):
            check_content(folder / manifest.index, metadata_digest(manifest))
        with storage_errors("read", folder / MANIFEST):
            return read_small(folder / MANIFEST).decode()
    except CheckpointError as error:
        if error.of_storage:
            raise
        return None
