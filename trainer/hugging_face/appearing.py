"""A folder that is whole or not there: written beside, renamed last, and knows what it is."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field, ValidationError

from specs.base import RecordModel
from trainer.checkpoint.store import storage_errors, sync_folder
from trainer.errors import LaunchError

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
def appearing(to: Path, asked: ExportRecord) -> Iterator[Path]:
    """Yield a folder to write into, which becomes `to` when the block ends without an error.

    What an earlier try that was cut off has left beside it is removed first. Of two that write the
    same at once, one is renamed and the other finds it there.

    Raises:
        LaunchError: somebody else has made another `to` meanwhile.
        CheckpointError: storage refuses.
    """
    with storage_errors("write", to):
        to.parent.mkdir(parents=True, exist_ok=True)
        for left in _left_behind(to):
            shutil.rmtree(left, ignore_errors=True)
        partial = to.with_name(f".{to.name}.{secrets.token_hex(4)}.partial")
        try:
            partial.mkdir()
            yield partial
            _finish(partial, asked)
            try:
                partial.rename(to)
            except OSError:
                if found_whole(to, asked) is None:
                    raise
            sync_folder(to.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # a full disk is not left full


def _left_behind(to: Path) -> list[Path]:
    name = re.compile(rf"\.{re.escape(to.name)}\.[0-9a-f]{{8}}\.partial")
    return [path for path in to.parent.iterdir() if name.fullmatch(path.name)]


def _finish(folder: Path, asked: ExportRecord) -> None:
    """Write the record, and have everything on the disk."""
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    record = asked.model_copy(update={"files": files})
    (folder / RECORD).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_folder(folder)


def _told(record: ExportRecord) -> str:
    return (
        f"{record.checkpoint_id} as {record.dtype} in files of {record.shard_bytes:,} bytes and "
        f"tokenizer {record.tokenizer}"
    )
