"""Exports the weights of a checkpoint, with its tokenizer, to a folder below a storage root."""

from __future__ import annotations

from pathlib import Path

from trainer.errors import LaunchError
from trainer.hugging_face.export import export
from trainer.hugging_face.tokenizer import ByteFiles, PlaceFiles
from trainer.operations.operation_folder import ProgressWriter, check_root, checkpoint_of
from trainer.storage.io_errors import storage_errors
from trainer.storage.root import storage_root
from trainyard.protocol.operations import (
    EXPORTS,
    ExportResult,
    ExportTask,
    OperationOrder,
    OperationOutcome,
)


def export_weights(order: OperationOrder, operation: Path) -> OperationOutcome:
    """Export the checkpoint in the task to its destination.

    Raises:
        LaunchError: the task has no export, its root is no folder on this node, or the destination
            holds other data or lies outside of its root.
        DataError: the tokenizer or the folder of a hub model is missing.
        CheckpointError: the checkpoint is damaged, or the storage reports an error.
    """
    task = order.task.export
    if task is None:
        raise LaunchError("the task has no `export`")
    checkpoint, point = checkpoint_of(order)
    tokenizer = ByteFiles() if task.tokenizer is None else PlaceFiles(task.tokenizer, order.roots)
    to = _destination(order, task)
    written = export(
        checkpoint,
        to,
        dtype=task.dtype,
        tokenizer=tokenizer,
        shard_bytes=int(task.shard_gib * 2**30),
        point=point,
        roots=order.roots,
        track=lambda total: ProgressWriter(operation, total=total),
    )
    result = ExportResult(
        place=task.place,
        path=str(to),
        dtype=task.dtype,
        files=len(written.files),
        size=written.size,
    )
    return OperationOutcome(
        outcome="succeeded",
        message=f"{result.files} files, {result.size:,} bytes in {to} ({task.place})",
        export=result,
    )


def _destination(order: OperationOrder, task: ExportTask) -> Path:
    """Return the folder to write; even with links resolved, the folder lies below its root."""
    if task.root not in order.roots:
        known = ", ".join(sorted(order.roots)) or "none"
        raise LaunchError(f"root {task.root!r} is not defined on this node (defined: {known})")
    root = storage_root(order.roots[task.root])
    if not isinstance(root, Path):
        raise LaunchError(
            f"root {task.root!r} is {root} on this node: give another root, since exports are "
            "written into folders",
            path=str(root),
        )
    check_root(root, order.root_id if task.root == order.task.root else None)
    folder = root / EXPORTS
    with storage_errors("create", folder):
        folder.mkdir(exist_ok=True)
        real = root.resolve()
    if folder.resolve() != real / EXPORTS:
        raise LaunchError(f"{folder} leads out of the root {root}", path=str(folder))
    return folder / task.name
