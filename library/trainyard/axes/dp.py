"""Data parallelism: replicas of the model, and shards of its weights (DDP, FSDP, HSDP)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainyard.axes.base import Axis, AxisFields, Traffic, TrafficFacts
from trainyard.base.model_base import Ranks


class DataParallelFields(AxisFields):
    """Fields of data parallelism."""

    dp_replicate: Ranks = 1
    """Number of replicas of the sharded model; above 1, HSDP or, without shards, DDP."""
    dp_shard: Annotated[int, Field(ge=-1, le=65_536, json_schema_extra={"unit": "ranks"})] = -1
    """Number of ranks that share the weights of one replica (FSDP); -1 uses all remaining slots."""
    reshard_after_forward: Literal["default", "always", "never"] = "default"
    """Whether gathered weights are freed after the forward pass. `default` frees them, with two
    exceptions: under pipeline parallelism all weights stay gathered, and the last layers always
    stay gathered, because backward starts with these layers."""


def sums_over_replicas(facts: TrafficFacts) -> Traffic:
    """Return the traffic per step of the all-reduce that sums gradient shards over replicas."""
    ranks = facts.size("dp_replicate")
    if ranks == 1:
        return Traffic()
    elements = facts.block_weights + facts.embedding_weights + facts.head_weights
    shard = elements * facts.reduce_bytes / _sharing(facts)
    return Traffic(2 * shard * (ranks - 1) / ranks, facts.blocks + 2, overlaps=True)


def gathers_weights(facts: TrafficFacts) -> Traffic:
    """Return the traffic for FSDP's all-gathers of weights and reduce-scatters of gradients.

    The ranks of `dp_shard` and `cp` share the weights. With `reshard_after_forward='default'`, the
    last layers stay gathered; in a pipeline, all layers do. An untied embedding is gathered for
    forward only.
    """
    ranks = _sharing(facts)
    if not facts.sharded or ranks == 1:
        return Traffic()
    setting, rounds = facts.options(DataParallelFields).reshard_after_forward, facts.micro_batches
    piped = facts.size("pp") > 1
    frees = setting == "always" or (setting == "default" and not piped)
    gathers = 1 if piped and not frees else rounds
    again = rounds if frees else 0
    blocks, rest = facts.block_weights, facts.embedding_weights + facts.head_weights
    gathered = gathers * (blocks + rest) + again * blocks
    gathered += again * facts.head_weights if setting == "always" else 0
    summed = (1 if piped or setting == "never" else rounds) * (blocks + rest)
    sent = gathered * facts.compute_bytes + summed * facts.reduce_bytes
    messages = (gathers + summed / max(blocks + rest, 1)) * (facts.blocks + 2)
    return Traffic(sent * (ranks - 1) / ranks, messages + again * facts.blocks, overlaps=True)


def _sharing(facts: TrafficFacts) -> int:
    return facts.size("dp_shard") * facts.size("cp")


FIELDS = DataParallelFields
AXES = (
    Axis(
        name="dp_replicate",
        label="DDP",
        order=10,
        mesh_order=20,  # one all-reduce of gradients per step, so ranks may be on several nodes
        help="Replicas of the sharded model.",
        divides="sequences",
        scope="batch",
        traffic=sums_over_replicas,
    ),
    Axis(
        name="dp_shard",
        label="FSDP",
        order=20,
        mesh_order=30,  # gathers the weights of every block, so ranks are nearer than replicas
        help="Ranks that share one replica's weights.",
        divides="sequences",
        scope="batch",
        shards_weights=True,
        traffic=gathers_weights,
    ),
)
