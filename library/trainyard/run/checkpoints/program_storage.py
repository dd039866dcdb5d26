"""Stores a program's checkpoints: in a job below a storage root, otherwise in a local folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainyard.run.atomic import replace_file, sync_folder
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.checkpoints.checkpoint_names import (
    COMMITTED,
    FENCE,
    MANIFEST,
    checkpoint_path,
)
from trainyard.run.checkpoints.fence_file import check_fence, raised_fence_file, read_fence_file
from trainyard.run.checkpoints.program_manifest import (
    MAX_MANIFEST_BYTES,
    ProgramManifest,
    marker_of,
)
from trainyard.run.checkpoints.saved_files import open_plain
from trainyard.run.record_base import to_json

CONTROL = ".save-"
"""Prefix of the names of folders with messages between ranks."""
LEFTOVER = re.compile(r"\.(?P<step>step-[0-9]+)\.(?P<kind>old|gone)")
"""Names of folders that remain if a save outside a job is killed: `old` is the step's earlier
checkpoint, and `gone` is a partly removed checkpoint."""

MESSAGES_SECONDS = 5400.0
"""Time without a new message after which a save by another run counts as ended. No rank waits
longer for a message."""


class UnusableCheckpointError(RuntimeError):
    """The parent checkpoint is missing, changed or incomplete."""

    def __init__(self, message: str, fault: CheckpointFault) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True)
class JobStorage:
    """Storage for the checkpoints of one attempt of a job."""

    root: Path
    """Path of the storage root on this node."""
    job_id: str
    attempt: int
    parent: str | None = None
    """Id of the parent checkpoint."""
    parent_path: str | None = None
    """Folder of the parent checkpoint, relative to the storage root."""

    run = ""

    @property
    def job_folder(self) -> Path:
        """Folder of the job, which contains the fence."""
        return self.root / self.job_id

    @property
    def folder(self) -> Path:
        """Folder of the attempt."""
        return self.job_folder / f"a{self.attempt}"

    def raise_fence(self, *, keep_messages: bool = False) -> None:
        """Fence off all earlier attempts, and remove the folders of unfinished saves and of
        messages.

        Args:
            keep_messages: whether to keep the messages of this attempt, because its ranks may still
                read them. Before the first save, all messages are from an earlier launch of the
                attempt.

        Raises:
            FencedOffError: a newer attempt has started.
            FenceError: the fence file has no number, or its lock is never released.
            OSError: the storage reports an error.
        """
        with raised_fence_file(self.job_folder, self.attempt):
            for leftover in self._leftovers(keep_messages=keep_messages):
                # Ignore errors, because the next attempt removes the rest.
                shutil.rmtree(leftover, ignore_errors=True)

    def fence_is_raised(self) -> bool:
        """Return whether rank 0 of this attempt has raised the fence.

        Raises:
            FencedOffError: a newer attempt has started.
            FenceError: the fence file has no number.
            OSError: the storage reports an error.
        """
        highest = read_fence_file(self.job_folder)
        check_fence(highest, self.attempt, self.job_folder / FENCE)
        return highest == self.attempt

    def resume_folder(self) -> Path | None:
        """Return the parent checkpoint's folder, after a check of marker, manifest and file sizes;
        None without a parent checkpoint.

        Raises:
            UnusableCheckpointError: the checkpoint is missing, changed or incomplete.
            OSError: the storage reports an error.
        """
        if self.parent is None or self.parent_path is None:
            return None
        folder = self.root / self.parent_path
        check_committed(folder, self.parent)
        return folder

    def create(self, step: int) -> Path | None:
        """Create the folder of a checkpoint; return None if this attempt has committed the step.

        The folders of this attempt's failed saves are removed first.
        Raises:
            OSError: the storage reports an error.
        """
        folder = self.root / checkpoint_path(self.job_id, self.attempt, step)
        if (folder / COMMITTED).exists():
            return None
        for failed in self._half_written(self.folder):
            # If a rank is still in the block of the failed save, its writes raise errors.
            shutil.rmtree(failed, ignore_errors=True)
        folder.mkdir(parents=True)
        # The name of a folder is durable only once its parent folder is synced.
        for parent in (folder.parent, self.job_folder, self.root):
            sync_folder(parent)
        return folder

    def commit(self, folder: Path, manifest: ProgramManifest) -> None:
        """Write manifest and marker, unless the fence shows that a newer attempt has started.

        Raises:
            FencedOffError: a newer attempt of the job has started.
            FenceError: the fence file has no number, or its lock is never released.
            ValueError: the manifest is illegal.
            OSError: the storage reports an error.
        """
        text = f"{to_json(manifest)}\n".encode()
        if (problem := manifest.disagreement) is not None:
            raise ValueError(problem)
        if len(text) > MAX_MANIFEST_BYTES:
            raise ValueError(
                f"the manifest has {len(text):,} bytes; legal: up to {MAX_MANIFEST_BYTES:,}, with "
                "fewer files or shorter names"
            )
        replace_file(folder / MANIFEST, text, mode=0o666)
        sync_folder(folder)
        with raised_fence_file(self.job_folder, self.attempt):
            replace_file(folder / COMMITTED, marker_of(text), mode=0o666)
            sync_folder(folder)

    def _leftovers(self, *, keep_messages: bool) -> Iterator[Path]:
        """Yield the folders of messages and the folders without a marker, of all attempts up to
        this attempt."""
        for attempt in _plain_folders(self.job_folder):
            number = attempt.name.removeprefix("a")
            if not (attempt.name.startswith("a") and number.isdecimal()):
                continue
            if int(number) > self.attempt:
                continue
            yield from self._half_written(attempt)
            if keep_messages and int(number) == self.attempt:
                continue
            for folder in _plain_folders(attempt):
                if folder.name.startswith(CONTROL):
                    yield folder

    @staticmethod
    def _half_written(attempt: Path) -> Iterator[Path]:
        for folder in _plain_folders(attempt):
            if folder.name.startswith("step-") and not (folder / COMMITTED).exists():
                yield folder


@dataclass(frozen=True)
class LocalStorage:
    """Storage for the checkpoints of a script without a job: one folder `step-<n>` per
    checkpoint."""

    folder: Path
    """Folder that contains everything that a save writes."""
    run: str
    """Unique text of a run of the script, as part of the names of the run's messages."""

    def create(self, step: int) -> Path:
        """Create an empty folder for a checkpoint; after the save, `name` renames the folder.

        The remains of earlier saves are removed first.
        Raises:
            OSError: the storage reports an error.
        """
        self._sweep()
        folder = self.folder / f".step-{step}.partial"
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder

    def name(self, folder: Path, step: int) -> None:
        """Rename a complete folder; an earlier folder for this step is replaced.

        Raises:
            OSError: the storage reports an error; the earlier folder is unchanged.
        """
        target, old = self.folder / f"step-{step}", self.folder / f".step-{step}.old"
        if target.exists():
            target.rename(old)
        try:
            folder.rename(target)
        except OSError:
            self.bring_back()
            raise
        sync_folder(self.folder)
        with suppress(OSError):
            # Rename the folder first, so that `bring_back` never restores a partly removed one.
            shutil.rmtree(old.rename(old.with_suffix(".gone")), ignore_errors=True)

    def bring_back(self) -> None:
        """Rename a checkpoint back if a process was killed between the two renames in `name`."""
        for found in _plain_folders(self.folder):
            leftover = LEFTOVER.fullmatch(found.name)
            if leftover and leftover["kind"] == "old":
                named = self.folder / leftover["step"]
                with suppress(OSError):  # another process has restored it meanwhile
                    if not named.exists():
                        found.rename(named)

    def _sweep(self) -> None:
        """Remove the remains of saves by earlier runs; keep drafts and recent messages, because
        their runs may be alive.

        Raises:
            OSError: the storage reports an error.
        """
        self.bring_back()
        for found in _plain_folders(self.folder):
            name, leftover = found.name, LEFTOVER.fullmatch(found.name)
            is_message = name.startswith(CONTROL) and not name.startswith(CONTROL + self.run)
            is_rest = leftover and (
                leftover["kind"] == "gone" or (self.folder / leftover["step"]).exists()
            )
            if is_rest or (is_message and _is_old(found)):
                shutil.rmtree(found, ignore_errors=True)


SaveStorage = JobStorage | LocalStorage


def check_committed(folder: Path, identifier: str) -> None:
    """Raise an error unless a folder is the committed checkpoint with this id and is complete.

    Raises:
        UnusableCheckpointError: the checkpoint is uncommitted, changed or incomplete, or has
            another id.
        OSError: the storage reports an error.
    """
    try:
        text = _content(folder / MANIFEST)
        marker = _content(folder / COMMITTED)
        if marker.decode(errors="replace").strip() != marker_of(text):
            raise UnusableCheckpointError(
                f"{folder}: {MANIFEST} was changed after the commit",
                CheckpointFault.MANIFEST_DAMAGED,
            )
        found = json.loads(text)
        if found["checkpoint_id"] != identifier:
            raise UnusableCheckpointError(
                f"{folder} is another checkpoint: its id is {found['checkpoint_id']}, expected "
                f"{identifier}",
                CheckpointFault.ANOTHER_CHECKPOINT,
            )
        for file in found["files"]:
            descriptor = open_plain(folder / file["path"])
            size = os.fstat(descriptor).st_size
            os.close(descriptor)
            if size != file["size"]:
                raise UnusableCheckpointError(
                    f"{folder / file['path']} has {size:,} bytes instead of {file['size']:,}",
                    CheckpointFault.FILE_SIZE,
                )
    except FileNotFoundError as error:
        is_marker = Path(str(error.filename)).name == COMMITTED
        fault = CheckpointFault.NOT_COMMITTED if is_marker else CheckpointFault.FILE_MISSING
        raise UnusableCheckpointError(f"{folder} is incomplete: {error}", fault) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableCheckpointError(
            f"{folder} is no checkpoint of a program: {error}", CheckpointFault.MANIFEST_DAMAGED
        ) from error


def _is_old(messages: Path) -> bool:
    try:
        return time.time() - messages.stat().st_mtime > MESSAGES_SECONDS
    except FileNotFoundError:  # another process has removed it meanwhile
        return False


def remove_messages(folder: Path, *, run: str, before: int) -> None:
    """Remove the messages of earlier saves, which all ranks have left."""
    for number, control in _messages(folder, run):
        if number < before:
            shutil.rmtree(control, ignore_errors=True)


def has_later(folder: Path, run: str, number: int) -> bool:
    """Return whether a later save than `number` has started."""
    return any(found > number for found, _ in _messages(folder, run))


def _messages(folder: Path, run: str) -> Iterator[tuple[int, Path]]:
    """Yield the number and the message folder of each save."""
    for control in _plain_folders(folder):
        number = control.name.removeprefix(CONTROL + run)
        if control.name.startswith(CONTROL + run) and number.isdecimal():
            yield int(number), control


def _content(path: Path) -> bytes:
    with os.fdopen(open_plain(path), "rb") as file:
        content = file.read(2 * MAX_MANIFEST_BYTES + 1)
    if len(content) > 2 * MAX_MANIFEST_BYTES:
        raise ValueError(f"{path} has more than {2 * MAX_MANIFEST_BYTES:,} bytes")
    return content


def _plain_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder; omit links, because their targets do not belong to the
    job."""
    with suppress(FileNotFoundError), os.scandir(folder) as found:
        return [Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False)]
    return []
