"""Loads every tensor of a checkpoint, part by part, on one rank or sharded over several."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor as sharded
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.checkpoint.reader.metadata import check_cover, kinds_of, load_metadata
from trainer.checkpoint.reader.storage_reader import CheckedReader, LoadPlanner
from trainer.errors import CheckpointError
from trainer.operations.operation_folder import ProgressWriter
from trainer.sized_groups import sized_groups
from trainer.storage.root import StoragePath
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import DCP_METADATA
from trainyard.run.checkpoint_faults import CheckpointFault

PART_BYTES = 512 * 2**20
"""Bytes of tensors in memory at once; a larger tensor is a part of its own."""

Entries = dict[str, TensorStorageMetadata]


def load_everything(
    folder: StoragePath,
    point: ResumePoint,
    *,
    ranks: int,
    progress: ProgressWriter,
    operation: Path,
) -> int:
    """Load all tensors of a checkpoint with verified checksums; return their number.

    Args:
        folder: folder of the checkpoint.
        point: the checkpoint that it must hold.
        ranks: ranks to shard the tensors over; 1 loads each whole.
        progress: counts the bytes read.
        operation: folder for the rendezvous file of the ranks.

    Raises:
        CheckpointError: the metadata is rejected, a tensor is incomplete, or one cannot be loaded;
            without a `fault` if the storage fails or a rank was killed, which proves nothing.
    """
    entries = _entries(folder, point)
    reader = _open(folder, point, entries)  # checks the manifest before any rank starts
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
    # DCP's own exception is no `Exception`.
    except (Exception, dcp.api.CheckpointException) as error:
        if refusal := _refusal(error):
            raise refusal from error
        message = str(error).strip().splitlines() or [repr(error)]
        raise CheckpointError(
            message[-1], path=str(folder), fault=CheckpointFault.LOAD_FAILED
        ) from error
    return len(entries)


def _refusal(error: BaseException) -> CheckpointError | None:
    """Return the storage error that made the load fail on a rank, if any."""
    failures = error.failures.values() if isinstance(error, dcp.api.CheckpointException) else ()
    causes = [error, *(cause for cause, _ in failures)]
    found = (one for one in causes if isinstance(one, CheckpointError) and one.of_storage)
    return next(found, None)


def _entries(folder: StoragePath, point: ResumePoint) -> Entries:
    """Return the metadata of each tensor, after checking that files cover all of them."""
    path = folder / DCP_METADATA
    metadata = load_metadata(path, expected_digest=point.metadata_digest)
    check_cover(metadata, path)
    found: Entries = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(
                f"{path}: {name} is no tensor",
                path=str(path),
                fault=CheckpointFault.METADATA_REFUSED,
            )
        found[name] = entry
    return found


def _open(folder: StoragePath, point: ResumePoint, entries: Entries) -> CheckedReader:
    reader = CheckedReader(folder)
    shapes = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        for name, entry in entries.items()
    }
    reader.look(point)
    reader.fit(kinds_of(shapes))
    return reader


def _load_alone(reader: CheckedReader, entries: Entries, progress: ProgressWriter) -> None:
    for part in _parts(entries):
        progress.begin(f"loads {next(iter(part))}")
        reader.read_alone(
            {name: torch.empty(e.size, dtype=e.properties.dtype) for name, e in part.items()}
        )
        progress.advance(sum(_bytes(entry) for entry in part.values()))


def _load_share(
    rank: int, ranks: int, folder: StoragePath, point: ResumePoint, meeting: Path
) -> None:
    """Load one rank's shard of every tensor; runs in a spawned process."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        entries = _entries(folder, point)
        reader = _open(folder, point, entries)
        for part in _parts(entries):
            tensors = {name: _share(entry, mesh) for name, entry in part.items()}
            dcp.load({}, storage_reader=reader, planner=LoadPlanner(tensors))
    except (Exception, dcp.api.CheckpointException) as error:
        if refusal := _refusal(error):
            # An exit, not an exception: `mp.spawn` reports an exception as a failed load, which
            # would count as a fault of the checkpoint.
            sys.exit(str(refusal))
        raise
    finally:
        dist.destroy_process_group()


def _share(entry: TensorStorageMetadata, mesh: DeviceMesh) -> Tensor:
    """Return an empty tensor for this rank's rows; scalars are replicated."""
    if not entry.size:
        return torch.empty((), dtype=entry.properties.dtype)
    return sharded.empty(
        *entry.size,
        dtype=entry.properties.dtype,
        device_mesh=mesh,
        placements=[sharded.Shard(0)],
    )


def _parts(entries: Mapping[str, TensorStorageMetadata]) -> Iterator[Entries]:
    """Yield the tensors in parts of at most `PART_BYTES`, sorted by name."""
    for names in sized_groups(sorted(entries), lambda n: _bytes(entries[n]), most=PART_BYTES):
        yield {name: entries[name] for name in names}


def _bytes(entry: TensorStorageMetadata) -> int:
    return prod(entry.size) * entry.properties.dtype.itemsize
