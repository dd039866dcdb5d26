"""Loads every tensor of a checkpoint, part by part, on one rank or sharded over several ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.tensor as sharded
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.checkpoint.chunks.divided_tensor import DTYPES, TensorKind, itemsize
from trainer.checkpoint.reader.storage_reader import CheckedReader
from trainer.errors import CheckpointError
from trainer.operations.operation_folder import ProgressWriter
from trainer.sized_groups import sized_groups
from trainer.storage.root import StoragePath
from trainyard.protocol.attempt import ResumePoint
from trainyard.run.checkpoint_faults import CheckpointFault

PART_BYTES = 512 * 2**20
"""Maximum bytes of tensors in memory at a time; a larger tensor is loaded on its own."""

Entries = dict[str, TensorKind]


def load_everything(
    folder: StoragePath,
    point: ResumePoint,
    *,
    ranks: int,
    progress: ProgressWriter,
    operation: Path,
) -> int:
    """Load all tensors of a checkpoint and verify its checksums; return the number of tensors.

    Args:
        folder: folder of the checkpoint.
        point: resume point that the folder must have.
        ranks: number of ranks over which tensors are sharded; 1 loads each tensor whole.
        progress: counts the bytes read, but only with a single rank.
        operation: folder in which the ranks create their rendezvous file.

    Raises:
        CheckpointError: the metadata is rejected, or a tensor is incomplete or cannot be loaded.
            After a failure of the storage or a killed rank, the error has no `fault`, because this
            proves nothing about the checkpoint.
    """
    reader, entries = _open(folder, point)  # checks the manifest before any rank starts
    try:
        if ranks == 1:
            _load_alone(reader, entries, progress)
        else:
            progress.begin(f"loads {len(entries)} tensors on {ranks} ranks")
            arguments = (ranks, folder, point, operation / "rendezvous")
            mp.spawn(_load_share, arguments, nprocs=ranks)
    except CheckpointError:
        raise
    except mp.ProcessExitedException as error:
        raise CheckpointError(
            f"{error} before it had loaded its share; the operation's log may say why",
            path=str(folder),
        ) from error
    except Exception as error:
        message = str(error).strip().splitlines() or [repr(error)]
        raise CheckpointError(
            message[-1], path=str(folder), fault=CheckpointFault.LOAD_FAILED
        ) from error
    return len(entries)


def _open(folder: StoragePath, point: ResumePoint) -> tuple[CheckedReader, Entries]:
    """Check that the files cover all tensors; return a reader and the tensors."""
    reader = CheckedReader(folder)
    reader.open(point)
    entries: Entries = {}
    for name, kind in reader.stored.kinds.items():
        if kind is None:
            path = str(folder / reader.manifest.index)
            raise CheckpointError(
                f"{path}: {name} is no tensor", path=path, fault=CheckpointFault.METADATA_REFUSED
            )
        entries[name] = kind
    reader.fit(entries)
    return reader, entries


def _load_alone(reader: CheckedReader, entries: Entries, progress: ProgressWriter) -> None:
    for part in _parts(entries):
        progress.begin(f"loads {next(iter(part))}")
        reader.read({n: torch.empty(k.shape, dtype=DTYPES[k.dtype]) for n, k in part.items()})
        progress.advance(sum(_bytes(entry) for entry in part.values()))


def _load_share(
    rank: int, ranks: int, folder: StoragePath, point: ResumePoint, meeting: Path
) -> None:
    """Load one rank's shard of every tensor; this runs in a spawned process."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        reader, entries = _open(folder, point)
        for part in _parts(entries):
            reader.read({name: _share(entry, mesh) for name, entry in part.items()})
    except CheckpointError as error:
        if error.of_storage:
            # Exit instead of raising. `mp.spawn` reports an exception as a failed load, which would
            # count as a fault of the checkpoint.
            sys.exit(str(error))
        raise
    finally:
        dist.destroy_process_group()


def _share(entry: TensorKind, mesh: DeviceMesh) -> Tensor:
    """Return an empty tensor for this rank's rows; a scalar is replicated."""
    if not entry.shape:
        return torch.empty((), dtype=DTYPES[entry.dtype])
    return sharded.empty(
        *entry.shape,
        dtype=DTYPES[entry.dtype],
        device_mesh=mesh,
        placements=[sharded.Shard(0)],
    )


def _parts(entries: Mapping[str, TensorKind]) -> Iterator[Entries]:
    """Yield the tensors in parts of at most `PART_BYTES`, sorted by name."""
    for names in sized_groups(sorted(entries), lambda n: _bytes(entries[n]), most=PART_BYTES):
        yield {name: entries[name] for name in names}


def _bytes(entry: TensorKind) -> int:
    return prod(entry.shape) * itemsize(entry.dtype)
