"""The base of every parallel axis: fields, order, label, legality, and the dimension it divides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from trainyard.base.model_base import SpecModel
from trainyard.base.problems import Problem
from trainyard.training.architectures import Architecture
from trainyard.training.batch_partition import BatchPartition

WIDEST = 256
"""Largest axis size that is tried for the nearest legal ones in a message."""

Sizes = Mapping[str, int]
"""Size of each axis by its name."""
Fields = TypeVar("Fields", bound="AxisFields")


class AxisFields(SpecModel):
    """Fields that an axis module adds to the spec's section `parallelism`: sizes and options."""


@dataclass(frozen=True)
class LayoutFacts:
    """Input of the rules of an axis: a job on one layout, without the spec itself."""

    sizes: Sizes
    """Size of each axis."""
    section: AxisFields
    """The section `parallelism`; `options` gives the part of one axis."""
    architecture: Architecture
    """Shape of the model."""
    size_name: str
    """`model.size`, for messages."""
    seq_len: int
    """Tokens of a sequence."""
    batch: BatchPartition
    """How each global batch is split over the data-parallel ranks."""
    compiles: bool
    """Whether blocks are compiled."""
    recomputation: str
    """`activation_checkpoint.mode`."""
    device: str
    """`resources.device`: `cuda`, `cpu` or `auto`."""
    own_plans: tuple[str, ...] | None
    """`model.plans` of a model of `model.factory`; None for our own families."""

    def size(self, axis: str) -> int:
        """Return the size of an axis."""
        return self.sizes[axis]

    def options(self, kind: type[Fields]) -> Fields:
        """Return the section as the fields of one axis module."""
        assert isinstance(self.section, kind)
        return self.section


Rule = Callable[[LayoutFacts], Iterator[Problem]]


@dataclass(frozen=True)
class TrafficFacts:
    """Input of the traffic of an axis: what the fullest rank of a layout holds and computes."""

    sizes: Sizes
    """Size of each axis."""
    section: AxisFields
    """The section `parallelism`; `options` gives the part of one axis."""
    sharded: bool
    """Whether FSDP holds the weights."""
    blocks: int
    """Transformer blocks of the rank."""
    block_weights: int
    """Elements of its blocks that it multiplies with: its share of each matrix."""
    embedding_weights: int
    """Likewise of the token embedding, 0 without it."""
    head_weights: int
    """Likewise of final norm and head; 0 where another rank or a tied embedding has them."""
    compute_bytes: int
    """Bytes of an element in computation."""
    reduce_bytes: int
    """Bytes of an element of the sum of gradients."""
    micro_batches: int
    """Micro-batches that the rank runs in a step, empty ones included."""
    stages: int
    """Pipeline stages of the rank."""
    stream_bytes: int
    """Residual stream of a micro-batch over its tokens, undivided by sequence parallelism."""
    held_stream_bytes: int
    """Part of it that the rank holds between blocks."""
    query_bytes: int
    """Queries of a micro-batch over its tokens and heads."""
    kv_bytes: int
    """Keys and values of a micro-batch over its tokens and heads."""
    recomputed: float
    """Share of a block's forward that backward repeats."""

    def size(self, axis: str) -> int:
        """Return the size of an axis."""
        return self.sizes[axis]

    def options(self, kind: type[Fields]) -> Fields:
        """Return the section as the fields of one axis module."""
        assert isinstance(self.section, kind)
        return self.section


@dataclass(frozen=True)
class Traffic:
    """What a rank sends in a step for one axis."""

    sent_bytes: float = 0.0
    """Bytes that leave the rank, as rings and trees send them."""
    messages: float = 0.0
    """Collectives and sends, of which each has a latency."""
    overlaps: bool = False
    """Whether a device with streams of its own computes meanwhile."""


@dataclass(frozen=True)
class Axis:
    """A parallel axis as data: layouts, mesh, planner, legality and labels iterate over these."""

    name: str
    """Field of the spec and of a layout, such as `tp`."""
    label: str
    """Name in labels, such as `TP` in `FSDP 2 x TP 2`."""
    order: int
    """Place in products, labels and tables."""
    mesh_order: int
    """Place in the mesh: ranks that differ in the highest one alone are neighbours."""
    help: str
    """One sentence for the schema."""
    divides: Literal["sequences", "tokens", "matrices", "layers"]
    """The dimension that its ranks divide."""
    scope: Literal["batch", "sequence"]
    """Legality in one scope is independent of sizes in the other: `sequence` for axes inside a
    sequence or a matrix, `batch` for axes that divide sequences and layers."""
    shards_weights: bool = False
    """Whether each rank stores only its shard of weights, gradients and optimizer states."""
    borrows_from: tuple[str, ...] = ()
    """Axes whose ranks it regroups; such an axis does not multiply the world size."""
    rules: tuple[Rule, ...] = field(default=(), repr=False)
    """Its legality rules for a job."""
    traffic: Callable[[TrafficFacts], Traffic] = field(default=lambda _: Traffic(), repr=False)
    """What a rank sends for it in a step."""
    resets: Callable[[Sizes, Sizes], dict[str, Any]] = field(default=lambda *_: {}, repr=False)
    """Resets of fields that were chosen for the former sizes and do not apply to new ones."""

    @property
    def multiplies_world(self) -> bool:
        """Whether its size is a factor of the world size."""
        return not self.borrows_from


def legal_sizes(is_legal: Callable[[int], bool]) -> list[int]:
    """Return the legal sizes of an axis up to the widest that messages name."""
    return [size for size in range(1, WIDEST + 1) if is_legal(size)]


def problem(field_name: str, detail: str) -> Problem:
    """Return a problem at a field of the section `parallelism`."""
    return Problem(pointer=f"/parallelism/{field_name}", detail=detail)


def lacks_plan(facts: LayoutFacts, axis: str, plan: str, what: str) -> Iterator[Problem]:
    """Yield a problem if an own model has no plan for the axis in `model.plans`."""
    size, plans = facts.size(axis), facts.own_plans
    if plans is not None and size > 1 and plan not in plans:
        given = f"[{', '.join(map(repr, plans))}]"
        yield problem(
            axis,
            f"{axis}={size} shares out {what} of a model of model.factory, but model.plans="
            f"{given} has no {plan!r}; legal: {axis}=1, or a model that gives this plan",
        )
