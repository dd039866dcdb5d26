"""The base of every parallel axis: fields, order, label, rules and divided dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from trainyard.base.model_base import SpecModel
from trainyard.base.problems import Problem
from trainyard.training.architectures import Architecture
from trainyard.training.batch_partition import BatchPartition

WIDEST = 256
"""Maximum axis size that is tried when a message lists the nearest legal sizes."""

Sizes = Mapping[str, int]
"""Size of each axis, by name."""
Fields = TypeVar("Fields", bound="AxisFields")


class AxisFields(SpecModel):
    """Base of the fields that a module adds to the section `parallelism`: sizes and options."""


@dataclass(frozen=True)
class LayoutFacts:
    """Facts about a job on one layout; the rules of the axes check them instead of the spec."""

    sizes: Sizes
    """Size of each axis, by name."""
    section: AxisFields
    """Section `parallelism` of the spec; `options` returns the fields of one module."""
    architecture: Architecture
    """Shape of the model."""
    size_name: str
    """`model.size` of the spec, for messages."""
    seq_len: int
    """Number of tokens in a sequence."""
    batch: BatchPartition
    """Split of each global batch over the data-parallel ranks."""
    compiles: bool
    """Whether blocks are compiled."""
    recomputation: str
    """`activation_checkpoint.mode` of the spec."""
    device: str
    """`resources.device` of the spec: `cuda`, `cpu` or `auto`."""
    own_plans: tuple[str, ...] | None
    """`model.plans` of a user's own model; None for the built-in families."""

    def size(self, axis: str) -> int:
        """Return the size of an axis."""
        return self.sizes[axis]

    def options(self, kind: type[Fields]) -> Fields:
        """Return the section `parallelism` as the fields of one module."""
        assert isinstance(self.section, kind)
        return self.section


Rule = Callable[[LayoutFacts], Iterator[Problem]]


@dataclass(frozen=True)
class TrafficFacts:
    """Facts about the fullest rank of a layout, from which the traffic of an axis is computed."""

    sizes: Sizes
    """Size of each axis, by name."""
    section: AxisFields
    """Section `parallelism` of the spec; `options` returns the fields of one module."""
    sharded: bool
    """Whether FSDP holds the weights."""
    blocks: int
    """Number of transformer blocks on the rank."""
    block_weights: int
    """Number of elements in the rank's share of the blocks' matrices."""
    embedding_weights: int
    """Number of elements in the rank's share of the token embedding; 0 if it has no share."""
    head_weights: int
    """Number of elements in the rank's share of the final norm and the head; 0 if they are on
    another rank. A tied embedding is not counted here."""
    compute_bytes: int
    """Size of an element in computation, in bytes."""
    reduce_bytes: int
    """Size of an element in the sum of gradients, in bytes."""
    micro_batches: int
    """Number of micro-batches of the rank in a step, including empty ones."""
    stages: int
    """Number of pipeline stages on the rank."""
    stream_bytes: int
    """Bytes of the residual stream for a micro-batch, not divided by sequence parallelism."""
    held_stream_bytes: int
    """Bytes of the residual stream that the rank holds between blocks, for a micro-batch."""
    query_bytes: int
    """Bytes of the queries for a micro-batch, over the rank's tokens and heads."""
    kv_bytes: int
    """Bytes of the keys and values for a micro-batch, over the rank's tokens and heads."""
    recomputed: float
    """Share of a block's forward pass that backward recomputes."""

    def size(self, axis: str) -> int:
        """Return the size of an axis."""
        return self.sizes[axis]

    def options(self, kind: type[Fields]) -> Fields:
        """Return the section `parallelism` as the fields of one module."""
        assert isinstance(self.section, kind)
        return self.section


@dataclass(frozen=True)
class Traffic:
    """Communication of one rank along one axis during one step."""

    sent_bytes: float = 0.0
    """Number of bytes that the rank sends, with ring and tree algorithms."""
    messages: float = 0.0
    """Number of collectives and sends; each costs one latency."""
    overlaps: bool = False
    """Whether the rank can compute during the communication, on a device with separate streams."""


@dataclass(frozen=True)
class Axis:
    """Description of a parallel axis; layouts, mesh, planner, rules and labels iterate over all
    axes."""

    name: str
    """Name of the field in the spec and in a layout, such as `tp`."""
    label: str
    """Name in labels, such as `TP` in `FSDP 2 x TP 2`."""
    order: int
    """Position among the axes in products, labels and tables."""
    mesh_order: int
    """Position among the axes in the mesh; ranks that differ only in the last axis are adjacent."""
    help: str
    """Description for the JSON Schema, in one sentence."""
    divides: Literal["sequences", "tokens", "matrices", "layers"]
    """Dimension that the ranks of the axis divide."""
    scope: Literal["batch", "sequence"]
    """`sequence` for an axis that divides a single sequence or matrix; `batch` for an axis that
    distributes whole sequences or layers. The legal sizes in one scope do not depend on the sizes
    in the other scope."""
    shards_weights: bool = False
    """Whether each rank only stores its shard of weights, gradients and optimizer states."""
    borrows_from: tuple[str, ...] = ()
    """Axes whose ranks this axis regroups; empty for most axes. An axis that regroups ranks is no
    factor of the world size.
    """
    rules: tuple[Rule, ...] = field(default=(), repr=False)
    """Rules for this axis that a job must satisfy."""
    traffic: Callable[[TrafficFacts], Traffic] = field(default=lambda _: Traffic(), repr=False)
    """Returns the communication of a rank along the axis in one step."""
    resets: Callable[[Sizes, Sizes], dict[str, Any]] = field(default=lambda *_: {}, repr=False)
    """Returns new values for the options that a change of axis sizes resets; takes the old sizes,
    then the new sizes."""

    @property
    def multiplies_world(self) -> bool:
        """Whether the size of the axis is a factor of the world size."""
        return not self.borrows_from


def legal_sizes(is_legal: Callable[[int], bool]) -> list[int]:
    """Return the legal sizes of an axis, up to `WIDEST`."""
    return [size for size in range(1, WIDEST + 1) if is_legal(size)]


def problem(field_name: str, detail: str) -> Problem:
    """Return a problem with a field of the section `parallelism`."""
    return Problem(pointer=f"/parallelism/{field_name}", detail=detail)


def lacks_plan(facts: LayoutFacts, axis: str, *, plan: str, what: str) -> Iterator[Problem]:
    """Yield a problem if `model.plans` of a user's own model lacks a plan for the axis."""
    size, plans = facts.size(axis), facts.own_plans
    if plans is not None and size > 1 and plan not in plans:
        given = f"[{', '.join(map(repr, plans))}]"
        yield problem(
            axis,
            f"{axis}={size} divides {what} of a model of model.factory, but model.plans="
            f"{given} has no {plan!r}; legal: {axis}=1, or a model that gives this plan",
        )
