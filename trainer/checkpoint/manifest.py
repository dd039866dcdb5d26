"""Reads and checks manifests of committed checkpoints, and the files that they list. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pydantic import ValidationError

from trainer.errors import CheckpointError
from trainer.storage.io_errors import (
    XXH3_128,
    digest,
    file_digest,
    read_small,
    storage_errors,
)
from trainer.storage.root import StoragePath, is_beneath
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import Manifest, ManifestFile, parse_manifest
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.checkpoints.checkpoint_names import COMMITTED, MANIFEST, checkpoint_path
from trainyard.run.checkpoints.program_manifest import (
    ALGORITHM,
    ProgramManifest,
    SavedFile,
    marker_of,
)


class FilePart(NamedTuple):
    """A process's part of a shared check: every `of`-th file, starting with file `number`."""

    number: int
    of: int


WHOLE = FilePart(0, 1)


def committed_manifests(
    root: StoragePath, job_id: str, *, attempt: int | None = None
) -> list[Manifest]:
    """Return the manifests of the built-in trainer's committed checkpoints, by attempt and step."""
    stored = stored_manifests(root, job_id, attempt=attempt)
    return [manifest for manifest in stored if isinstance(manifest, Manifest)]


def stored_manifests(
    root: StoragePath, job_id: str, *, attempt: int | None = None
) -> list[Manifest | ProgramManifest]:
    """Return the manifests of a job's or an attempt's committed checkpoints, by attempt and step.

    Omits a folder that is incomplete or unreadable, does not match its marker, or belongs at
    another path.
    """
    found = []
    for folder in checkpoint_folders(root, job_id):
        if attempt is not None and folder.parent.name != f"a{attempt}":
            continue
        try:
            manifest = read_stored(folder)
        except CheckpointError:
            continue
        place = checkpoint_path(manifest.job_id, manifest.attempt, manifest.step)
        if folder == root / place:
            found.append(manifest)
    return sorted(found, key=lambda manifest: (manifest.attempt, manifest.step))


def read_manifest(folder: StoragePath) -> Manifest:
    """Return the manifest of a checkpoint that the built-in trainer committed.

    Raises:
        CheckpointError: the checkpoint is not committed, its manifest is unreadable or damaged, or
            a program saved it.
    """
    return _of_trainer(read_stored(folder), folder)


def _of_trainer(manifest: Manifest | ProgramManifest, folder: StoragePath) -> Manifest:
    if isinstance(manifest, Manifest):
        return manifest
    raise CheckpointError(
        f"{folder} was saved by a program: only the program knows what its files hold",
        path=str(folder),
    )


def read_stored(folder: StoragePath) -> Manifest | ProgramManifest:
    """Return the manifest of a committed checkpoint of the trainer or of a program.

    Raises:
        CheckpointError: the checkpoint is not committed, or its manifest is unreadable or damaged.
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
        text = read_small(path)
        promised = read_small(marker).strip()
    damaged = partial(CheckpointError, path=str(path), fault=CheckpointFault.MANIFEST_DAMAGED)
    # A program's marker names its digest algorithm.
    found = marker_of(text) if b":" in promised else digest(text)
    if found.encode() != promised:
        raise damaged(
            f"{path} was changed: its checksum is {found}, but {COMMITTED} names another one"
        )
    try:
        manifest = parse_manifest(text)
    except ValidationError as error:
        raise damaged(f"{path} is no manifest: {error}") from None
    if isinstance(manifest, ProgramManifest):
        if manifest.disagreement is not None:
            raise damaged(f"{path}: {manifest.disagreement}")
        return manifest
    # Names must not contain folders, because later checks and reads join the names to this folder.
    for file in manifest.files:
        if PurePosixPath(file.path).name != file.path:
            raise damaged(f"{path} names a file elsewhere: {file.path!r}")
    return manifest


def read_checked(
    folder: StoragePath, resume: ResumePoint, *, root: StoragePath, part: FilePart
) -> Manifest:
    """Return the manifest of the trainer's checkpoint `resume`, after the checks of
    `read_checked_stored`.

    Raises:
        CheckpointError: as for `read_checked_stored`, or a program saved the checkpoint.
    """
    return _of_trainer(read_checked_stored(folder, resume, root=root, part=part), folder)


def read_checked_stored(
    folder: StoragePath, resume: ResumePoint, *, root: StoragePath, part: FilePart = WHOLE
) -> Manifest | ProgramManifest:
    """Return the manifest of the checkpoint `resume`; check everything except file contents.

    This process checks only `part` of the listed files.

    Raises:
        CheckpointError: the checkpoint is not committed, is damaged or is a different one, its
            counters disagree, or a file is a symbolic link to a target outside of the root.
    """
    # Check links first, so that a marker or a manifest outside of the root is not even opened.
    check_links(folder, (MANIFEST, COMMITTED), root)
    manifest = read_stored(folder)
    _check_identity(manifest, resume, folder)
    check_counters(manifest, folder)
    check_links(folder, (file.path for file in manifest.files[part.number :: part.of]), root)
    return manifest


def _check_identity(
    manifest: Manifest | ProgramManifest, resume: ResumePoint, folder: StoragePath
) -> None:
    found = (manifest.checkpoint_id, manifest.step, metadata_digest(manifest))
    wanted = (resume.checkpoint_id, resume.step, resume.metadata_digest)
    for name, is_, should in zip(("id", "step", "metadata digest"), found, wanted, strict=True):
        if is_ != should:
            raise CheckpointError(
                f"{folder} is another checkpoint: its {name} is {is_}, expected {should}",
                path=str(folder),
                fault=CheckpointFault.ANOTHER_CHECKPOINT,
            )


def metadata_digest(manifest: Manifest | ProgramManifest) -> str:
    """Return the digest by which a resume point identifies a checkpoint's content.

    Raises:
        CheckpointError: the manifest does not list the metadata file.
    """
    try:
        return manifest.metadata_digest
    except ValueError as error:
        raise CheckpointError(str(error), fault=CheckpointFault.MANIFEST_DAMAGED) from None


def check_counters(manifest: Manifest | ProgramManifest, folder: StoragePath) -> None:
    """Reject counters that no training run can produce.

    Raises:
        CheckpointError: steps, tokens and data position disagree.
    """
    if found := manifest.disagreement:
        raise CheckpointError(
            f"{folder / MANIFEST}: {found}",
            path=str(folder / MANIFEST),
            fault=CheckpointFault.COUNTERS_DISAGREE,
        )


def check_links(folder: StoragePath, names: Iterable[str], root: StoragePath) -> None:
    """Reject checkpoint files that are symbolic links to targets outside of the storage root.

    Raises:
        CheckpointError: a file is such a link, or cannot be resolved.
    """
    for path in (folder / name for name in names):
        with storage_errors("read", path):
            if isinstance(path, Path) and path.is_symlink():
                path.stat()  # raises OSError for a cycle of links; `resolve` raises another error
        if not is_beneath(path, root):
            raise CheckpointError(
                f"{path} leads through a symbolic link to a place outside the storage root {root}",
                path=str(path),
                fault=CheckpointFault.LINKED_OUTSIDE,
            )


def check_sizes(folder: StoragePath, files: Iterable[ManifestFile | SavedFile]) -> None:
    """Compare each file's size with the size in the manifest, without reading the file.

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


def check_contents(folder: StoragePath, files: Iterable[ManifestFile | SavedFile]) -> None:
    """Compare each file's checksum with the checksum in the manifest; reads whole files.

    Raises:
        CheckpointError: the content of a file differs, or a file cannot be read.
    """
    for file in files:
        if isinstance(file, SavedFile):
            check_content(folder / file.path, file.checksum, algorithm=ALGORITHM)
        else:
            check_content(folder / file.path, file.xxh3_128)


def check_content(path: StoragePath, expected: str, *, algorithm: str = XXH3_128) -> None:
    """Compare a file's checksum with the expected checksum; reads the whole file.

    Raises:
        CheckpointError: the content of the file differs, or the file cannot be read.
    """
    with storage_errors("read", path):
        found = file_digest(path, algorithm=algorithm)
    if found != expected:
        raise CheckpointError(
            f"{path} is damaged: its checksum is {found} instead of {expected}",
            path=str(path),
            fault=CheckpointFault.FILE_DAMAGED,
        )


def checkpoint_folders(root: StoragePath, job_id: str) -> list[StoragePath]:
    """Return the folders of a job's checkpoints, whether committed or not."""
    job = root / job_id
    if isinstance(job, Path):
        return list(job.glob("a*/step-*"))
    with storage_errors("list", job):
        # A save that died during its first upload left no object, only an unfinished upload.
        begun = (path for path, _ in job.uploads())
        folders = {path.parent for path in chain(job.beneath(), begun)}
    return [f for f in sorted(folders) if f.parent.parent == job and f.name.startswith("step-")]
