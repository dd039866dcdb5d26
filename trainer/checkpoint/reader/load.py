"""Verifies and loads a checkpoint of any layout and world size, on all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from trainer.checkpoint.chunks.divided_tensor import TensorKind
from trainer.checkpoint.manifest import FilePart
from trainer.checkpoint.reader.metadata import kinds_of
from trainer.checkpoint.reader.storage_reader import CheckedReader, files_to_verify
from trainer.checkpoint.tensors import (
    LARGEST_PIECE,
    OPTIMIZER,
    WEIGHTS,
    tied_weights,
    train_tensors,
)
from trainer.distributed import on_every_rank
from trainer.errors import CheckpointError
from trainer.parallel.mesh import ranks_of_replicas
from trainer.parallel.quantize import refresh_scales
from trainer.process import collector_disabled
from trainer.storage.root import StoragePath, is_beneath
from trainyard.protocol.attempt import ResumePoint
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.resume_parts import CheckpointPart
from trainyard.run.checkpoint_faults import CheckpointFault
from trainyard.run.failures import LoadFailure
from trainyard.spec.layout import Layout
from trainyard.spec.storage_uri import ROOT_FILE

PREFIXES = {CheckpointPart.MODEL: WEIGHTS, CheckpointPart.OPTIMIZER: OPTIMIZER}
"""Name prefixes of the parts of a checkpoint that consist of tensors."""
MISSING = (CheckpointFault.NOT_COMMITTED, CheckpointFault.FILE_MISSING)


def load(
    model: nn.Module,
    optimizer: Optimizer,
    resume: ResumePoint,
    *,
    root: StoragePath,
    group: dist.ProcessGroup,
    layout: Layout,
    admit: Callable[[Manifest], object] = lambda _manifest: None,
) -> CheckedReader:
    """Fill model and optimizer in place from a checkpoint of any layout and world size.

    Parts that `resume` omits are not read, and their tensors stay unchanged. All ranks must call
    this together; a failure on one rank is raised on every rank. Returns the reader, which has the
    manifest and the number of bytes that this rank read.

    Args:
        model: this rank's part of the model, with sharded parameters as DTensors.
        optimizer: optimizer of the model, whose state already exists.
        resume: checkpoint and the parts to load.
        root: storage root to which the path in `resume` is relative.
        group: CPU group of all ranks.
        layout: layout of these ranks.
        admit: called on each rank with the manifest, before the metadata is compared; it raises a
            `RunError` for a checkpoint that this attempt must not load.

    Raises:
        MismatchError: the checkpoint's tensors differ from the tensors of all ranks together; the
            message counts all differences, and names the first ones of each kind.
        CheckpointError: the checkpoint is missing, not committed, damaged, or not the one in
            `resume`.
    """
    parts = tuple(PREFIXES[part] for part in resume.parts if part in PREFIXES)
    rank = dist.get_rank(group)
    reads = ranks_of_replicas(rank, layout)[0] == rank  # the first replica reads for all replicas
    with collector_disabled(), torch.no_grad():
        tensors = {
            name: tensor
            for name, tensor in train_tensors(model, optimizer).items()
            if name.startswith(parts)
        }
        wanted, tied = _wanted_together(tensors, tied_weights(model), group=group, layout=layout)
        part = FilePart(rank, dist.get_world_size(group))
        reader = CheckedReader(root / resume.path, root=root, tied=tied, part=part)

        def check() -> None:
            _check_beneath(root, resume.path)
            reader.open(resume)
            admit(reader.manifest)
            reader.fit(wanted, parts=parts)

        try:
            _load(tensors, reader, check, group=group, layout=layout, reads=reads)
        except CheckpointError as error:
            error.load = _what_failed(error, resume, root)
            raise
    refresh_scales(model)  # float8 scales are computed from the weights, not stored
    return reader


def _load(
    tensors: Mapping[str, Tensor],
    reader: CheckedReader,
    check: Callable[[], None],
    *,
    group: dist.ProcessGroup,
    layout: Layout,
    reads: bool,
) -> None:
    # This barrier ensures that no rank overwrites tensors while another may reject the checkpoint.
    on_every_rank(group, check)

    def read() -> None:
        if reads:
            share = files_to_verify(reader.manifest, rank=dist.get_rank(group), layout=layout)
            reader.read(tensors, verified=share)

    on_every_rank(group, read)
    if layout.dp_replicate > 1:
        broadcast(tensors, layout, group)


def _what_failed(
    error: CheckpointError, resume: ResumePoint, root: StoragePath
) -> LoadFailure | None:
    """Return the record of a failed load; None if neither checkpoint nor storage is at fault.

    The record has a fault only with proof. A missing file is proof only if the root has its UUID
    file, because unmounted storage lacks every file.
    """
    fault = error.fault
    if fault in MISSING and not _is_storage(root):
        fault = None
    elif fault is None and not (error.of_storage or error.transient):
        return None
    return LoadFailure(checkpoint_id=resume.checkpoint_id, fault=fault)


def _is_storage(root: StoragePath) -> bool:
    try:
        return (root / ROOT_FILE).exists()
    except OSError:
        return False


def _wanted_together(
    tensors: Mapping[str, Tensor],
    tied: Mapping[str, str],
    *,
    group: dist.ProcessGroup,
    layout: Layout,
) -> tuple[dict[str, TensorKind], dict[str, str]]:
    """Return tensors and ties of all ranks, as listed by the first rank of each stage."""
    mine = (kinds_of(tensors), dict(tied))
    wanted: dict[str, TensorKind] = {}
    ties: dict[str, str] = {}
    for first in range(0, layout.world_size, layout.world_size // layout.pp):
        named = [mine]
        dist.broadcast_object_list(named, group=group, group_src=first)
        wanted |= named[0][0]
        ties |= named[0][1]
    return wanted, ties


def _check_beneath(root: StoragePath, relative: str) -> None:
    inside = is_beneath(root / relative, root)
    if PurePosixPath(relative).is_absolute() or not inside:
        raise CheckpointError(
            f"{relative!r} lies outside the storage root {root}",
            path=relative,
            fault=CheckpointFault.LINKED_OUTSIDE,
        )


def broadcast(tensors: Mapping[str, Tensor], layout: Layout, everybody: dist.ProcessGroup) -> None:
    """Send the first replica's shards to the ranks of other replicas that hold the same shards.

    All ranks must call this together, with tensors of the same names; a failure on one rank is
    raised on every rank. The shards are sent through host memory, one piece at a time.
    """
    ranks = ranks_of_replicas(dist.get_rank(), layout)
    # Keep the group until the process ends. torch would give a destroyed group's name to the next
    # group, which would then connect to closed addresses.
    group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    assert group is not None
    on_every_rank(everybody, lambda: _send_or_receive(tensors, group))


def _send_or_receive(tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> None:
    for name in sorted(tensors):
        tensor = tensors[name]
        shard = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
        flat = shard.reshape(-1)
        # Tensors are sent in the order of their names, which is equal on all ranks of the group.
        for piece in flat.split(max(1, LARGEST_PIECE // shard.itemsize)):
            on_host = piece.cpu()  # no copy if the piece is already on the CPU
            dist.broadcast(on_host.view(torch.uint8), group_src=0, group=group)
            piece.copy_(on_host)
        if not shard.is_contiguous():
            shard.copy_(flat.view(shard.shape))
