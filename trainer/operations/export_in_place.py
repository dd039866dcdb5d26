"""Exports a kept checkpoint into its own folder, where a deletion of the checkpoint removes it."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainer.checkpoint.manifest import WHOLE, read_checked
from trainer.errors import CheckpointError, LaunchError
from trainer.operations.operation_folder import ProgressWriter, checkpoint_of
from trainer.storage.io_errors import storage_errors
from trainer.storage.root import StoragePath, storage_root
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import DCP_METADATA
from trainyard.protocol.operations import (
    HUGGING_FACE,
    AutoExportTask,
    ExportResult,
    OperationOrder,
    OperationOutcome,
)


def export_automatically(order: OperationOrder, operation: Path) -> OperationOutcome:
    """Export the checkpoint in the task in the format of the task.

    Raises:
        LaunchError: the task has no automatic export, or the format needs a folder and the root is
            a bucket.
        DataError: the tokenizer or the folder of a hub model is missing.
        CheckpointError: the checkpoint is missing or damaged, or the storage reports an error.
    """
    task = order.task.auto_export
    if task is None:
        raise LaunchError("the task has no `auto_export`")
    checkpoint, point = checkpoint_of(order)
    if task.format == "dcp":
        result = _write_index(order, checkpoint, point)
    else:
        result = _write_weights(order, task, checkpoint=checkpoint, point=point, to=operation)
    message = f"{result.files} files, {result.size:,} bytes in {result.path} ({result.place})"
    return OperationOutcome(outcome="succeeded", message=message, export=result)


def _write_index(order: OperationOrder, folder: StoragePath, point: ResumePoint) -> ExportResult:
    """Add DCP's index if the save has left it out; torch is imported only then."""
    manifest = read_checked(folder, point, root=storage_root(order.root_path), part=WHOLE)
    if all(file.path != DCP_METADATA for file in manifest.files):
        from trainer.operations.metadata_file import write_metadata

        write_metadata(folder)
    with storage_errors("read", folder / DCP_METADATA):
        size = (folder / DCP_METADATA).stat().st_size
    result = {
        "format": "dcp",
        "place": f"{order.task.root}:{order.task.paths[0]}",
        "path": str(folder),
        "dtype": manifest.param_dtype,
        "files": 1,
        "size": size,
    }
    return ExportResult.model_validate(result)  # validated, as a manifest can name any type


def _with_room(folder: Path, operation: Path, *, total: int) -> ProgressWriter:
    """Refuse an export that would take the space of the next checkpoint; else return its progress.

    Args:
        folder: folder of the export, which does not exist yet.
        operation: folder of the operation.
        total: size of the checkpoint and of its export, in bytes.

    Raises:
        CheckpointError: the disk has less free space than `total`.
    """
    with storage_errors("read", folder.parent):
        free = shutil.disk_usage(folder.parent).free
    if free < total:
        raise CheckpointError(
            f"{folder.parent} has {free / 2**20:,.1f} MiB free, but the export and the next "
            f"checkpoint need {total / 2**20:,.1f} MiB",
            path=str(folder.parent),
            of_storage=True,
            transient=True,
        )
    return ProgressWriter(operation, total=total)


def _write_weights(
    order: OperationOrder,
    task: AutoExportTask,
    *,
    checkpoint: StoragePath,
    point: ResumePoint,
    to: Path,
) -> ExportResult:
    from trainer.hugging_face.export import export
    from trainer.hugging_face.tokenizer import ByteFiles, PlaceFiles

    if not isinstance(checkpoint, Path):
        raise LaunchError(
            f"root {order.task.root!r} is {order.root_path}, a bucket, and the files of "
            "safetensors are written into folders: set checkpoint.export to dcp or none, and "
            "export single checkpoints to a folder (`trainyard export --root`)",
            path=str(checkpoint),
        )
    folder = checkpoint / HUGGING_FACE
    tokenizer = ByteFiles() if task.tokenizer is None else PlaceFiles(task.tokenizer, order.roots)
    written = export(
        checkpoint,
        folder,
        tokenizer=tokenizer,
        point=point,
        roots=order.roots,
        track=lambda total: _with_room(folder, to, total=total),
    )
    result = {
        "place": f"{order.task.root}:{order.task.paths[0]}/{HUGGING_FACE}",
        "path": str(folder),
        "dtype": written.dtype,
        "files": len(written.files),
        "size": written.size,
    }
    return ExportResult.model_validate(result)
