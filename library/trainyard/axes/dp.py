"""Data parallelism: replicas of the model, and shards of its weights (DDP, FSDP, HSDP)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.axes.base import Axis, AxisFields
from trainyard.base.model_base import Ranks


class DataParallelFields(AxisFields):
    """Fields of data parallelism."""

    dp_replicate: Ranks = 1
    """Replicas of the sharded model (HSDP when above 1)."""
    dp_shard: Annotated[int, Field(ge=-1, le=65_536, json_schema_extra={"unit": "ranks"})] = -1
    """Ranks that share one replica's weights (FSDP); -1 fills the requested slots."""
    reshard_after_forward: Literal["default", "always", "never"] = "default"
    """Free gathered weights after the forward pass; `default`: yes, unless pipeline parallel is on,
    and never for the last layers, which backward needs at once."""


FIELDS = DataParallelFields
AXES = (
    Axis(
        name="dp_replicate",
        label="DDP",
        order=10,
        mesh_order=20,  # one all-reduce of gradients a step: may cross nodes
        help="Replicas of the sharded model.",
        divides="sequences",
        scope="batch",
    ),
    Axis(
        name="dp_shard",
        label="FSDP",
        order=20,
        mesh_order=30,  # gathers the weights of every block: nearer than replicas
        help="Ranks that share one replica's weights.",
        divides="sequences",
        scope="batch",
        shards_weights=True,
    ),
)
