"""Checks that all nodes of an attempt see the same checkpoint root, before the first save."""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.distributed import Ranks, on_every_rank
from trainer.errors import LaunchError
from trainer.run import TrainerRun
from trainer.storage.io_errors import storage_errors
from trainer.storage.object_path import ObjectPath
from trainer.storage.root import StoragePath

PROBE = "PROBE-"
SEEN_SECONDS = 10.0
"""Time limit, in seconds, for another node's file to appear. A network file system caches folders,
so a new file may appear late.
"""
REMEDY = (
    "Mount one storage under this root on both nodes, or give the root another name or another "
    "UUID (.trainyard-root) where the storage differs; then resume."
)


@dataclass(frozen=True)
class _Probe:
    node: str
    name: str


def check_shared_root(run: TrainerRun, ranks: Ranks) -> None:
    """Refuse an attempt of several nodes that do not see the same checkpoint root.

    The nodes form a ring. The first rank of each node writes a file, and the first rank of the
    previous node reads and deletes the file. Each node needs three requests, for any number of
    nodes. The root's UUID is no proof, because a copy of the folder has the same UUID, and because
    storage may have been unmounted since the UUID was read.

    Raises:
        LaunchError: a node does not see the job's folder or the file of another node; the message
            names both.
        CheckpointError: the storage reports an error.
    """
    if os.environ.get("LOCAL_WORLD_SIZE", "1") == str(ranks.world_size):
        return
    folder = run.checkpoint_root / run.attempt.job_id
    mine = None
    if os.environ["LOCAL_RANK"] == "0":
        node = run.attempt.node_of(ranks.rank) or platform.node()
        mine = _Probe(node, f"{PROBE}{run.attempt.attempt}-{uuid.uuid4().hex}")
    try:
        written = on_every_rank(ranks.cpu_group, lambda: _write(folder, mine))
        probes = [probe for probe in written if probe is not None]
        on_every_rank(ranks.cpu_group, lambda: _take_following(folder, mine, probes))
    finally:
        if mine is not None:
            with suppress(OSError):
                (folder / mine.name).unlink(missing_ok=True)


def remove_probes(folder: StoragePath, *, attempt: int) -> None:
    """Remove files left by killed attempts of a job up to `attempt`; errors are ignored.

    The caller must have raised the fence to that attempt, and must not have written a file yet.
    """
    with suppress(OSError):
        for path in list(_probes(folder)):
            number = path.name.removeprefix(PROBE).partition("-")[0]
            if number.isdecimal() and int(number) <= attempt:
                path.unlink(missing_ok=True)


def _probes(folder: StoragePath) -> Iterator[StoragePath]:
    if isinstance(folder, ObjectPath):
        return folder.beneath(start=PROBE)
    return folder.glob(f"{PROBE}*")


def _write(folder: StoragePath, mine: _Probe | None) -> _Probe | None:
    """Write this node's file; rank 0 created the job's folder when it raised the fence."""
    if mine is None:
        return None
    path, content = folder / mine.name, mine.name.encode()
    if isinstance(path, Path) and not path.parent.is_dir():
        raise _unseen(mine.node, path.parent, "the node of rank 0")
    with storage_errors("write", path):
        path.put(content) if isinstance(path, ObjectPath) else path.write_bytes(content)
    return mine


def _take_following(folder: StoragePath, mine: _Probe | None, probes: Sequence[_Probe]) -> None:
    """Read and delete the file of the next node in the ring."""
    if mine is None:
        return
    other = probes[(probes.index(mine) + 1) % len(probes)]
    path = folder / other.name
    deadline = time.monotonic() + SEEN_SECONDS
    with storage_errors("read", path):
        while not path.exists():
            if time.monotonic() > deadline:
                raise _unseen(mine.node, path, other.node)
            time.sleep(0.1)
        path.read_bytes()
    with storage_errors("delete", path):
        path.unlink(missing_ok=True)


def _unseen(node: str, path: StoragePath, writer: str) -> LaunchError:
    return LaunchError(
        f"{node} does not see {path}, which {writer} has written: the two nodes have different "
        "storage under this checkpoint root",
        path=str(path),
        remedy=REMEDY,
    )
