"""The checkpoint folder on storage: created once, read with doubt, committed last. No torch."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from trainer.checkpoint.save_phases import Point, reached
from trainer.errors import CheckpointError
from trainer.storage.io_errors import digest, file_digest, storage_errors
from trainer.storage.object_path import ObjectPath
from trainer.storage.root import StoragePath, is_beneath
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import (
    COMMITTED,
    MANIFEST,
    Manifest,
    ManifestFile,
    checkpoint_path,
)
from trainyard.run.atomic import replacing, sync_folder
from trainyard.run.checkpoint_faults import CheckpointFault


def committed(root: StoragePath, job_id: str, *, attempt: int | None = None) -> list[Manifest]:
    """Return the manifests of a job's committed checkpoints, or of one attempt's, in order.

    Whatever is half-written, does not match its marker or lies in another one's place is left out.
    """
    found = []
    for folder in _folders(root, job_id):
        if attempt is not None and folder.parent.name != f"a{attempt}":
            continue
        try:
            manifest = read_manifest(folder)
        except CheckpointError:
            continue
        place = checkpoint_path(manifest.job_id, manifest.attempt, manifest.train_state.step)
        if folder == root / place:
            found.append(manifest)
    return sorted(found, key=lambda manifest: (manifest.attempt, manifest.train_state.step))


def read_manifest(folder: StoragePath) -> Manifest:
    """Return the manifest of a committed checkpoint.

    Raises:
        CheckpointError: the checkpoint is not committed, or its manifest is damaged.
    """
    path = folder / MANIFEST
    marker = folder / COMMITTED
    with storage_errors("read", marker):
        is_committed = marker.exists()
    if not is_committed:
        raise CheckpointError(
            f"{folder} is no committed checkpoint: {COMMITTED} is missing",
            path=str(marker),
            fault=CheckpointFault.NOT_COMMITTED,
        )
    with storage_errors("read", path):
        text = path.read_bytes()
        promised = marker.read_bytes()
    damaged = partial(CheckpointError, path=str(path), fault=CheckpointFault.MANIFEST_DAMAGED)
    if digest(text).encode() != promised.strip():
        raise damaged(
            f"{path} was changed: its checksum is {digest(text)}, but {COMMITTED} says otherwise"
        )
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise damaged(f"{path} is no manifest: {error}") from None
    for file in manifest.files:
        if PurePosixPath(file.path).name != file.path:
            raise damaged(f"{path} names a file elsewhere: {file.path!r}")
    return manifest


def read_checked(folder: StoragePath, resume: ResumePoint, *, root: StoragePath) -> Manifest:
    """Return the manifest of the checkpoint of `resume`, of which no file leads out of the root.

    Raises:
        CheckpointError: it is not committed, another one or damaged, or its counters disagree.
    """
    check_links(folder, (MANIFEST, COMMITTED), root)
    manifest = read_manifest(folder)
    _check_identity(manifest, resume, folder)
    check_counters(manifest, folder)
    check_links(folder, (file.path for file in manifest.files), root)
    return manifest


def _check_identity(manifest: Manifest, resume: ResumePoint, folder: StoragePath) -> None:
    found = (manifest.checkpoint_id, manifest.train_state.step, metadata_digest(manifest))
    wanted = (resume.checkpoint_id, resume.step, resume.metadata_digest)
    for name, is_, should in zip(("id", "step", "metadata digest"), found, wanted, strict=True):
        if is_ != should:
            raise CheckpointError(
                f"{folder} is another checkpoint: its {name} is {is_}, asked for was {should}",
                path=str(folder),
                fault=CheckpointFault.ANOTHER_CHECKPOINT,
            )


def metadata_digest(manifest: Manifest) -> str:
    """Return the checksum of the DCP metadata, as a resume point carries it.

    Raises:
        CheckpointError: the manifest names no metadata.
    """
    try:
        return manifest.metadata_digest
    except ValueError as error:
        raise CheckpointError(str(error), fault=CheckpointFault.MANIFEST_DAMAGED) from None


def check_counters(manifest: Manifest, folder: StoragePath) -> None:
    """Refuse counters that no training can have left.

    Raises:
        CheckpointError: steps, tokens and position in the data disagree.
    """
    if found := manifest.disagreement:
        raise CheckpointError(
            f"{folder / MANIFEST}: {found}",
            path=str(folder / MANIFEST),
            fault=CheckpointFault.COUNTERS_DISAGREE,
        )


def check_links(folder: StoragePath, names: Iterable[str], root: StoragePath) -> None:
    """Refuse files of a checkpoint that are symbolic links out of the storage root.

    Raises:
        CheckpointError: one is.
    """
    for path in (folder / name for name in names):
        with storage_errors("read", path):
            if isinstance(path, Path) and path.is_symlink():
                path.stat()  # a loop cannot be followed
        if not is_beneath(path, root):
            raise CheckpointError(
                f"{path} leads through a symbolic link to a place outside the storage root {root}",
                path=str(path),
                fault=CheckpointFault.LINKED_OUTSIDE,
            )


def check_sizes(folder: StoragePath, files: Iterable[ManifestFile]) -> None:
    """Compare the size of each file with the manifest's, which costs no reading.

    Raises:
        CheckpointError: a file is missing, truncated or too long.
    """
    for file in files:
        path = folder / file.path
        with storage_errors("read", path):
            size = path.stat().st_size
        if size != file.size:
            raise CheckpointError(
                f"{path} has {size:,} bytes instead of {file.size:,}",
                path=str(path),
                fault=CheckpointFault.FILE_SIZE,
            )


def check_contents(folder: StoragePath, files: Iterable[ManifestFile]) -> None:
    """Compare the checksum of each file with the manifest's, reading it whole.

    Raises:
        CheckpointError: a byte differs.
    """
    for file in files:
        check_content(folder / file.path, file.xxh3_128)


def check_content(path: StoragePath, expected: str) -> None:
    """Compare the XXH3-128 of a file with the one expected, reading it whole.

    Raises:
        CheckpointError: a byte differs.
    """
    with storage_errors("read", path):
        found = file_digest(path)
    if found != expected:
        raise CheckpointError(
            f"{path} is damaged: its checksum is {found} instead of {expected}",
            path=str(path),
            fault=CheckpointFault.FILE_DAMAGED,
        )


def create(folder: StoragePath) -> None:
    """Create the folder of a new checkpoint, exclusively; a leftover without marker is replaced.

    An object store knows no folders: there, the leftover is removed, and each file is exclusive.

    Raises:
        CheckpointError: it cannot be created, or somebody else creates it at the same time.
    """
    with storage_errors("create", folder):
        if isinstance(folder, ObjectPath):
            folder.remove_all()
            return
        if folder.exists():
            shutil.rmtree(folder)
        missing = [parent for parent in folder.parents if not parent.exists()]
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        for changed in {folder.parent, *(parent.parent for parent in missing)}:
            sync_folder(changed)
    reached(Point.FOLDER_MADE, folder)


def collect(root: StoragePath, job_id: str, *, attempt: int) -> list[StoragePath]:
    """Remove the half-written checkpoints of a job up to an attempt; return what is gone.

    Only who has raised the fence to that attempt may call it, before its own first save: then no
    attempt that could still write one of them can commit it.
    """
    with storage_errors("read", root / job_id):
        leftovers = [
            folder
            for folder in _folders(root, job_id)
            if _is_of(folder, attempt) and not (folder / COMMITTED).exists()
        ]
    return [folder for folder in leftovers if _remove(folder)]


def _folders(root: StoragePath, job_id: str) -> list[StoragePath]:
    """Return the folders of a job's checkpoints, whatever they hold."""
    job = root / job_id
    if isinstance(job, Path):
        return list(job.glob("a*/step-*"))
    with storage_errors("list", job):
        begun = (path for path, _ in job.uploads())
        folders = {path.parent for path in chain(job.beneath(), begun)}
    return [f for f in sorted(folders) if f.parent.parent == job and f.name.startswith("step-")]


def _is_of(folder: StoragePath, attempt: int) -> bool:
    number = folder.parent.name.removeprefix("a")
    linked = isinstance(folder, Path) and folder.is_symlink()
    return number.isdecimal() and int(number) <= attempt and not linked


def _remove(folder: StoragePath) -> bool:
    """Remove a folder and say whether it is gone; what stays is removed another time."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    try:
        folder.remove_all()
    except OSError:
        return False
    return True


def discard(folder: StoragePath) -> None:
    """Remove what a failed save left, the marker first; what cannot be removed stays."""
    try:
        (folder / COMMITTED).unlink(missing_ok=True)
    except OSError:
        return
    _remove(folder)


def write_manifest(folder: StoragePath, manifest: Manifest) -> None:
    """Write `manifest.json`, durably; the checkpoint is still uncommitted.

    Raises:
        CheckpointError: it cannot be written.
    """
    write_durably(folder / MANIFEST, manifest.model_dump_json(indent=2).encode())


def commit(folder: StoragePath) -> None:
    """Write the marker that makes the folder a checkpoint.

    Raises:
        CheckpointError: it cannot be written.
    """
    path = folder / MANIFEST
    with storage_errors("read", path):
        text = path.read_bytes()
    write_durably(folder / COMMITTED, digest(text).encode())


def write_durably(path: StoragePath, content: bytes) -> None:
    """Replace a file atomically, so that it survives a power cut once this returns.

    A put into an object store is just that.

    Raises:
        CheckpointError: it cannot be written.
    """
    if isinstance(path, ObjectPath):
        with storage_errors("write", path):
            path.put(content)
        return
    with storage_errors("write", path):
        with replacing(path, mode=0o666) as file:
            file.write(content)
            file.flush()
            reached(Point.REPLACING, path)
        reached(Point.NAMED, path)
        sync_folder(path.parent)
