"""The folder of an export, whole or absent, and the record of what it was made of."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, ValidationError

from trainer.errors import LaunchError
from trainer.storage.io_errors import storage_errors
from trainyard.base.model_base import RecordModel
from trainyard.run.atomic import new_folder

RECORD = "export.json"


class ExportRecord(RecordModel):
    """`export.json`: what a folder was made of, and what lies in it."""

    checkpoint_id: str
    """Checkpoint that was exported."""
    metadata_digest: str
    """Digest of its DCP metadata."""
    dtype: str
    """Type of the weights."""
    shard_bytes: int
    """Most bytes of tensors in one file."""
    tokenizer: str | None
    """The tokenizer beside them: `byte`, a place or a folder; none when absent."""
    files: dict[str, int] = Field(default_factory=dict)
    """Bytes of each file, this one left out."""

    @property
    def size(self) -> int:
        """Bytes of all files, this one left out."""
        return sum(self.files.values())

    def is_of(self, other: ExportRecord) -> bool:
        """Whether another one asks for the same."""
        return self.model_copy(update={"files": {}}) == other.model_copy(update={"files": {}})


def found_whole(to: Path, asked: ExportRecord) -> ExportRecord | None:
    """Return the record of a folder that holds what is asked for; None where there is nothing.

    Raises:
        LaunchError: something else is there.
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
    if not found.is_of(asked) or held != found.files:
        raise LaunchError(
            f"{to} is there already, with {_told(found)}, not {_told(asked)}: name a folder that "
            "is not",
            path=str(to),
        )
    return found


@contextmanager
def export_folder(to: Path, asked: ExportRecord) -> Iterator[Path]:
    """Yield a folder to write into, which becomes `to` with its record when the block ends well.

    Of two processes that write the same at once, one renames its folder and the other finds it.

    Raises:
        LaunchError: another process has created another `to` meanwhile.
        CheckpointError: storage refuses.
    """
    with storage_errors("write", to):
        try:
            with new_folder(to) as folder:
                yield folder
                files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
                record = asked.model_copy(update={"files": files})
                text = record.model_dump_json(indent=1) + "\n"
                (folder / RECORD).write_text(text, encoding="utf-8")
        except FileExistsError:
            if found_whole(to, asked) is None:
                raise


def _told(record: ExportRecord) -> str:
    return (
        f"{record.checkpoint_id} as {record.dtype} in files of {record.shard_bytes:,} bytes and "
        f"tokenizer {record.tokenizer}"
    )
