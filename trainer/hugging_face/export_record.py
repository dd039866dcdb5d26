"""Creates the folder of an export atomically, with a record of the export's source and files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, ValidationError

from trainer.errors import CheckpointError, LaunchError
from trainer.hugging_face.folder import INDEX, SINGLE
from trainer.storage.io_errors import storage_errors
from trainyard.base.model_base import RecordModel
from trainyard.run.atomic import new_folder

RECORD = "export.json"


class ExportRecord(RecordModel):
    """`export.json`: the source and the files of an export."""

    checkpoint_id: str
    """Id of the exported checkpoint."""
    metadata_digest: str
    """Digest of the checkpoint's index."""
    dtype: str
    """Dtype of the exported weights."""
    shard_bytes: int
    """Maximum number of tensor bytes in one file."""
    tokenizer: str | None
    """Exported tokenizer: `byte`, a place or a folder; None for an export without a tokenizer."""
    files: dict[str, int] = Field(default_factory=dict)
    """Size of each file except `export.json`, in bytes."""

    @property
    def size(self) -> int:
        """Total size of all files except `export.json`, in bytes."""
        return sum(self.files.values())


def existing_export(to: Path, requested: ExportRecord) -> ExportRecord | None:
    """Return the record of a complete, equal export in `to`; None if `to` does not exist.

    Raises:
        LaunchError: `to` holds other data, or an incomplete export.
    """
    if not os.path.lexists(to):
        return None
    try:
        found = ExportRecord.model_validate_json((to / RECORD).read_bytes())
        held = {name: (to / name).stat().st_size for name in found.files}
    except (OSError, ValidationError):
        raise LaunchError(
            f"{to} is there already, and no whole export: name a folder that is not", path=str(to)
        ) from None
    if found.model_copy(update={"files": {}}) != requested or held != found.files:
        raise LaunchError(
            f"{to} is there already, with {_described(found)}, not {_described(requested)}: name a "
            "folder that is not",
            path=str(to),
        )
    return found


@contextmanager
def export_folder(to: Path, requested: ExportRecord, *, parents: bool = True) -> Iterator[Path]:
    """Yield a temporary folder; on success, add the record and rename the folder to `to`.

    Two processes may write the same export concurrently; the second one then keeps the first one's
    folder. Missing parents of `to` are created only if `parents`.

    Raises:
        LaunchError: another process has meanwhile created `to` with other data.
        CheckpointError: the storage reports an error, or lacks a file that the index names.
    """
    with storage_errors("write", to):
        try:
            with new_folder(to, parents=parents) as folder:
                yield folder
                files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
                _check_index(folder, files.keys())
                record = requested.model_copy(update={"files": files})
                text = record.model_dump_json(indent=1) + "\n"
                (folder / RECORD).write_text(text, encoding="utf-8")
        except FileExistsError:
            if existing_export(to, requested) is None:
                raise


def _check_index(folder: Path, files: Set[str]) -> None:
    """Compare the files of weights with the files that the index names.

    Raises:
        CheckpointError: the two sets of files differ.
    """
    held = {name for name in files if name.endswith(".safetensors")}
    named = {SINGLE}
    if INDEX in files:
        named = set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())
    if held != named:
        differing = sorted(held ^ named)
        raise CheckpointError(
            f"the export has {len(held)} files of weights, and its index names {len(named)}: "
            f"{', '.join(differing[:3])} differ; was another process there?",
            path=str(folder),
        )


def _described(record: ExportRecord) -> str:
    return (
        f"{record.checkpoint_id} as {record.dtype} in files of {record.shard_bytes:,} bytes and "
        f"tokenizer {record.tokenizer}"
    )
