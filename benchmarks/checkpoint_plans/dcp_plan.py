"""For comparison: DCP's own planner, which plans for all ranks in one process."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from trainer.checkpoint.chunks.divided_tensor import DTYPES, DividedTensor


@dataclass(frozen=True)
class DcpCost:
    """Processor seconds of the coordinating rank, and sizes."""

    plan: float
    """Planning for all ranks, once each rank's list is there."""
    pickle: float
    """Pickling the metadata, at every save; without the places of the chunks."""
    metadata_bytes: int
    gathered_bytes: int
    """Bytes of all received lists."""


def dcp_cost(stages: Sequence[Sequence[DividedTensor]], world_size: int) -> DcpCost:
    """Plan a save of all ranks with DCP."""
    plans = [
        SavePlan([_item(tensor, rank) for tensor in stages[rank * len(stages) // world_size]])
        for rank in range(world_size)
    ]
    gathered = sum(len(pickle.dumps(plan)) for plan in plans)
    planner = DefaultSavePlanner(flatten_state_dict=False)
    started = time.process_time()
    _, metadata = planner.create_global_plan(plans)
    planned = time.process_time()
    content = pickle.dumps(metadata)
    pickled = time.process_time()
    return DcpCost(planned - started, pickled - planned, len(content), gathered)


def _item(tensor: DividedTensor, rank: int) -> WriteItem:
    offsets, sizes = map(torch.Size, tensor.kind.box_of(rank))
    return WriteItem(
        index=MetadataIndex(tensor.name, offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(offsets, sizes),
            properties=TensorProperties(dtype=DTYPES[tensor.kind.dtype]),
            size=torch.Size(tensor.kind.shape),
        ),
    )
