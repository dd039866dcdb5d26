"""Manifest of a program's checkpoint, with the files of all ranks and their checksums."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from trainyard.run.checkpoints.checkpoint_names import COMMITTED, MANIFEST, checkpoint_id
from trainyard.run.limits import LAST_STEP, Bounds
from trainyard.run.record_base import JsonRecord

ALGORITHM: Literal["sha256"] = "sha256"
"""Checksum of files and manifest; the standard library and common tools can compute it."""
MAX_FILES = 10_000
LONGEST_NAME = 1000
"""Maximum length of a file's path below the checkpoint's folder, in characters."""
MAX_MANIFEST_BYTES = 2 * 1024 * 1024
"""Maximum size of a manifest, in bytes; the manifest must fit into one line of a report to the
server."""
CHECKSUM = re.compile(r"[0-9a-f]{64}")
KIND = re.compile(r"[a-z_]{1,16}")
"""Legal reasons for a save, such as `interval` or `final`."""


@dataclass(frozen=True, kw_only=True)
class SavedFile(JsonRecord):
    """One file of a program's checkpoint."""

    path: Annotated[str, Bounds(max_length=LONGEST_NAME)]
    """Path of the file, relative to the checkpoint's folder."""
    size: Annotated[int, Bounds(ge=0, lt=2**62)]
    """Size of the file, in bytes."""
    checksum: Annotated[str, Bounds(max_length=64)]
    """Checksum of the file's content, in hexadecimal."""


@dataclass(frozen=True, kw_only=True)
class ProgramManifest(JsonRecord):
    """`manifest.json` of a program's checkpoint. The manifest describes only the files of the
    checkpoint."""

    saved_by: Literal["program"] = "program"
    """Mark of a program's manifest; a manifest of the built-in trainer lacks this field."""
    format_version: int = 1
    """Format version of the manifest."""
    checkpoint_id: Annotated[str, Bounds(max_length=200)]
    """Id of the checkpoint."""
    job_id: Annotated[str, Bounds(max_length=100)]
    """Id of the job that wrote the checkpoint."""
    attempt: Annotated[int, Bounds(ge=1, lt=2**31)]
    """Number of the attempt that wrote the checkpoint."""
    step: Annotated[int, Bounds(ge=0, le=LAST_STEP)]
    """Step of the checkpoint, as given by the program."""
    created_at: datetime
    """Time at which the manifest was written, in UTC."""
    world_size: Annotated[int, Bounds(ge=1, le=100_000)]
    """Number of processes that took part in the save."""
    parent: Annotated[str, Bounds(max_length=200)] | None = None
    """Id of the attempt's parent checkpoint."""
    kind: Annotated[str, Bounds(max_length=16)] = "interval"
    """Reason for the save, as given by the program."""
    save_seconds: float
    """Time from the moment at which rank 0 enters its save block to the last checksum."""
    algorithm: Literal["sha256"] = ALGORITHM
    """Algorithm of the checksums."""
    size: Annotated[int, Bounds(ge=0, lt=2**62)]
    """Total size of all files, in bytes."""
    files: Annotated[tuple[SavedFile, ...], Bounds(max_length=MAX_FILES)]
    """All files in the folder except manifest and marker, sorted by path."""

    @property
    def metadata_digest(self) -> str:
        """Digest of the list of files; it identifies the content in resume points and the catalog.

        It has 32 hexadecimal digits, like the digest for a checkpoint of the built-in trainer.
        """
        listed = [[file.path, file.size, file.checksum] for file in self.files]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:32]

    @property
    def write_seconds(self) -> None:
        """Always None, because the write times of the ranks are unknown."""
        return None

    @property
    def disagreement(self) -> str | None:
        """Return a contradiction or an illegal value in the manifest; None without one."""
        if self.checkpoint_id != checkpoint_id(self.job_id, self.attempt, self.step):
            return f"{self.checkpoint_id!r} is no id of its job, attempt and step"
        if not KIND.fullmatch(self.kind):
            return f"{self.kind!r} is no kind of checkpoint"
        names = [file.path for file in self.files]
        if names != sorted(set(names)):
            return "its files are not in the order of their paths, each once"
        for file in self.files:
            if (refused := name_problem(file.path)) is not None:
                return refused
            if not CHECKSUM.fullmatch(file.checksum):
                return f"{file.path!r} has no {self.algorithm} checksum"
        if (total := sum(file.size for file in self.files)) != self.size:
            return f"size is {self.size}, but its files have {total} bytes"
        return None


def name_problem(path: str) -> str | None:
    """Return the reason why a path is illegal for a file of a checkpoint; None if it is legal."""
    if not path or len(path) > LONGEST_NAME:
        return f"{path[:80]!r} is no name of 1 to {LONGEST_NAME} characters"
    if not path.isprintable() or not _is_text(path):
        return f"{path[:80]!r} holds characters that cannot be printed"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return f"{path[:80]!r} names a place outside of the checkpoint's folder"
    if path in (MANIFEST, COMMITTED):
        return f"{path!r} is written by the commit; legal: another name"
    return None


def marker_of(manifest: bytes) -> str:
    """Return the content of `COMMITTED`: algorithm and checksum of the manifest's bytes."""
    return f"{ALGORITHM}:{hashlib.sha256(manifest).hexdigest()}"


def total_size(files: Iterable[SavedFile]) -> int:
    """Return the total size of files, in bytes."""
    return sum(file.size for file in files)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return False
    return True
