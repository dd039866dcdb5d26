"""Who reads what: DCP's load planner for a flat dictionary, files to verify, and replicas."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.planner_helpers import (
    _create_chunk_list,
    create_read_items_for_chunk_list,
)
from torch.distributed.tensor import DTensor

from trainer.checkpoint.collective_errors import on_every_rank
from trainer.checkpoint.transfer import LARGEST_PIECE
from trainer.parallel.mesh import ranks_of_replicas
from trainyard.spec.layout import Layout


class LoadPlanner(DefaultLoadPlanner):
    """Plans as DCP does, but asks only once where a rank's shard of some shape lies.

    Weights and moments are sharded alike, and so are all layers. `dcp.load` gets an empty
    dictionary, of which it asks nothing: whether each tensor is an object that loads itself takes
    it longer than the plan.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Read into these tensors, which the checkpoint was found to hold."""
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._tensors = dict(tensors)
        self._chunks: dict[Hashable, list[ChunkStorageMetadata]] = {}

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Take the tensors of this planner in place of DCP's empty dictionary."""
        assert not state_dict
        super().set_up_planner(self._tensors, metadata, is_coordinator)

    def create_local_plan(self) -> LoadPlan:
        """Return what this rank wants of which stored piece."""
        assert self.metadata is not None
        items = []
        for name, tensor in self._tensors.items():
            entry = self.metadata.state_dict_metadata[name]
            assert isinstance(entry, TensorStorageMetadata)
            items += create_read_items_for_chunk_list(name, entry, self._chunks_of(tensor))
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """Return this rank's shard of a tensor, as plain memory."""
        tensor = self._tensors[index.fqn]
        return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()

    def _chunks_of(self, tensor: Tensor) -> list[ChunkStorageMetadata]:
        if not isinstance(tensor, DTensor):
            return _create_chunk_list(tensor)
        key = (tensor.shape, tensor.device_mesh, tensor.placements)
        if key not in self._chunks:
            self._chunks[key] = _create_chunk_list(tensor)
        return self._chunks[key]


def share_out(
    sizes: Mapping[str, int], needs: Sequence[Mapping[str, int] | None]
) -> list[tuple[str, ...]]:
    """Return for each rank the files that it reads whole; each file has one rank.

    A rank that needs much of a file has little to add to read all of it, so on the layout that
    wrote the checkpoint each rank gets its own file, and nothing is read twice. Who has the least
    to read comes first, so that the ranks end together.

    Args:
        sizes: bytes of each file.
        needs: for each rank, the bytes that it needs of each file; None for one that reads nothing.
    """
    load = {rank: sum(need.values()) for rank, need in enumerate(needs) if need is not None}
    shares: list[list[str]] = [[] for _ in needs]
    needed_by: dict[str, list[int]] = {name: [] for name in sizes}
    for rank, need in enumerate(needs):
        for name in need or ():
            needed_by[name].append(rank)
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        idlest = min(load, key=load.__getitem__)

        def with_it(rank: int, name: str = name) -> int:
            return load[rank] + sizes[name] - (needs[rank] or {}).get(name, 0)

        chosen = min([idlest, *needed_by[name]], key=lambda rank: (with_it(rank), rank))
        load[chosen] = with_it(chosen)
        shares[chosen].append(name)
    return [tuple(share) for share in shares]


def in_first_replica(rank: int, layout: Layout) -> bool:
    """Return whether a rank belongs to the first replica, which reads for all."""
    return ranks_of_replicas(rank, layout)[0] == rank


def broadcast(tensors: Mapping[str, Tensor], layout: Layout, everybody: dist.ProcessGroup) -> None:
    """Give this rank's shards to the ranks that hold the same ones, or take them from the first.

    All ranks call it together, with tensors of the same names, and what fails on one is raised on
    every rank. They travel between the hosts, in pieces: beside them no more than one piece is in
    memory.
    """
    ranks = ranks_of_replicas(dist.get_rank(), layout)
    # It stays until the process ends: torch gives the name of a group that is gone to the next one,
    # which then looks for its ranks where nobody listens any more.
    group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    assert group is not None
    on_every_rank(everybody, lambda: _send_or_receive(tensors, group))


def _send_or_receive(tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> None:
    for name in sorted(tensors):
        tensor = tensors[name]
        shard = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
        flat = shard.reshape(-1)
        for piece in flat.split(max(1, LARGEST_PIECE // shard.itemsize)):
            on_host = piece.cpu()  # of a CPU it is the piece itself
            dist.broadcast(on_host.view(torch.uint8), group_src=0, group=group)
            piece.copy_(on_host)
        if not shard.is_contiguous():
            shard.copy_(flat.view(shard.shape))
