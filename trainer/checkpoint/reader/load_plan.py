"""DCP's load planner, for a flat dictionary of tensors that `dcp.load` itself does not see."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

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
