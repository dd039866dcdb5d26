"""A program that saves checkpoints, its ranks in threads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from trainyard.protocol.record_parser import parse_record
from trainyard.run.checkpoints.program_manifest import ProgramManifest
from trainyard.run.checkpoints.program_save import ProgramCheckpoints
from trainyard.run.checkpoints.program_storage import (
    JobStorage,
)

JOB = "job-1"
Body = Callable[[int, Path], None]


class Program:
    """The ranks of one attempt, each in a thread."""

    def __init__(self, root: Path, ranks: int, attempt: int = 1, *, wait: float = 20.0) -> None:
        self.reported: list[ProgramManifest] = []
        storage = JobStorage(root, JOB, attempt)
        self.ranks = [
            ProgramCheckpoints(storage, rank, ranks, self.reported.append, wait)
            for rank in range(ranks)
        ]

    def save(self, step: int, body: Body, **others: Body) -> list[BaseException | None]:
        """Save on every rank; return the error of each."""
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            futures: list[Future[None]] = [
                pool.submit(save_on, rank, step, others.get(f"rank_{rank.rank}", body))
                for rank in self.ranks
            ]
        return [future.exception() for future in futures]


def save_on(rank: ProgramCheckpoints, step: int, body: Body) -> None:
    """Save on one rank."""
    with rank.save(step) as folder:
        body(rank.rank, folder)


def own_file(rank: int, folder: Path) -> None:
    """Write a file of this rank."""
    (folder / f"rank-{rank}.pt").write_bytes(bytes([rank]) * (100 + rank))


def refused(error: int) -> Body:
    """Return a block function that fails with an error of the system."""

    def body(_rank: int, _folder: Path) -> None:
        raise OSError(error, os.strerror(error))

    return body


def committed(folder: Path) -> ProgramManifest:
    """Return the manifest of a checkpoint, after a check of marker and checksums."""
    text = (folder / "manifest.json").read_bytes()
    assert (folder / "COMMITTED").read_text() == f"sha256:{hashlib.sha256(text).hexdigest()}"
    manifest = parse_record(ProgramManifest, text)
    assert manifest.disagreement is None
    for file in manifest.files:
        content = (folder / file.path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.checksum)
    return manifest
