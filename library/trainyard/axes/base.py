"""The base of every parallel axis: fields, order, label, legality and divided dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from trainyard.base.model_base import SpecModel
from trainyard.base.problems import Problem
from trainyard.training.architectures import Architecture
from trainyard.training.batch_partition import BatchPartition

WIDEST = 256
"""Largest axis size to try in the search for the nearest legal sizes of a message."""

Sizes = Mapping[str, int]
"""Size of each axis by its name."""
Fields = TypeVar("Fields", bound="AxisFields")


class AxisFields(SpecModel):
    """Fields that an axis module adds to the spec's section `parallelism`: sizes and options."""


@dataclass(frozen=True)
class LayoutFacts:
    """Input of an axis's rules: a job on one layout, without its spec."""

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
    """`model.plans` of an own model; None for the built-in families."""

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
    """Input of an axis's traffic: contents and computation of the fullest rank of a layout."""

    sizes: Sizes
    """Size of each axis."""
    section: AxisFields
    """The section `parallelism`; `options` gives the part of one axis."""
    sharded: bool
    """Whether FSDP holds the weights."""
    blocks: int
    """Transformer blocks of the rank."""
    block_weights: int
    """Elements in the rank's share of the blocks' matrices."""
    embedding_weights: int
    """Elements in its share of the token embedding; 0 without it."""
    head_weights: int
    """Elements in its share of final norm and head; 0 if another rank or a tied embedding has
    them."""
    compute_bytes: int
    """Bytes of an element in computation."""
    reduce_bytes: int
    """Bytes of an element in the sum of gradients."""
    micro_batches: int
    """Micro-batches of the rank in a step, including empty ones."""
    stages: int
    """Pipeline stages of the rank."""
    stream_bytes: int
    """Residual stream of a micro-batch over its tokens, not divided by sequence parallelism."""
    held_stream_bytes: int
    """Part of the residual stream that the rank holds between blocks."""
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
    """Communication of a rank for one axis in a step."""

    sent_bytes: float = 0.0
    """Bytes that the rank sends, with ring and tree algorithms."""
    messages: float = 0.0
    """Number of collectives and sends; each has a latency."""
    overlaps: bool = False
    """Whether a device with its own streams computes meanwhile."""


@dataclass(frozen=True)
class Axis:
    """A parallel axis as data: layouts, mesh, planner, legality and labels iterate over these."""

    name: str
    """Field of the spec and of a layout, such as `tp`."""
    label: str
    """Name in labels, such as `TP` in `FSDP 2 x TP 2`."""
    order: int
    """Position in products, labels and tables."""
    mesh_order: int
    """Position in the mesh; ranks that differ only in the highest axis are neighbours."""
    help: str
    """One sentence for the schema."""
    divides: Literal["sequences", "tokens", "matrices", "layers"]
    """The dimension that its ranks divide."""
    scope: Literal["batch", "sequence"]
    """`sequence` for axes inside a sequence or a matrix, `batch` for axes that divide sequences and
    layers. Legality in one scope does not depend on sizes in the other."""
    shards_weights: bool = False
    """Whether each rank stores only its shard of weights, gradients and optimizer states."""
    borrows_from: tuple[str, ...] = ()
    """Other axes that give it their ranks; such an axis does not multiply the world size."""
    rules: tuple[Rule, ...] = field(default=(), repr=False)
    """Legality rules for a job."""
    traffic: Callable[[TrafficFacts], Traffic] = field(default=lambda _: Traffic(), repr=False)
    """Communication of a rank for this axis in a step."""
    resets: Callable[[Sizes, Sizes], dict[str, Any]] = field(default=lambda *_: {}, repr=False)
    """Values for the options that must be reset when sizes change, from old and new sizes."""

    @property
    def multiplies_world(self) -> bool:
        """Whether its size is a factor of the world size."""
        return not self.borrows_from


def legal_sizes(is_legal: Callable[[int], bool]) -> list[int]:
    """Return the legal sizes of an axis up to `WIDEST`."""
    return [size for size in range(1, WIDEST + 1) if is_legal(size)]


def problem(field_name: str, detail: str) -> Problem:
    """Return a problem at a field of the section `parallelism`."""
    return Problem(pointer=f"/parallelism/{field_name}", detail=detail)


def lacks_plan(facts: LayoutFacts, axis: str, *, plan: str, what: str) -> Iterator[Problem]:
    """Yield a problem if an own model has no plan for the axis in `model.plans`."""
    size, plans = facts.size(axis), facts.own_plans
    if plans is not None and size > 1 and plan not in plans:
        given = f"[{', '.join(map(repr, plans))}]"
        yield problem(
            axis,
            f"{axis}={size} divides {what} of a model of model.factory, but model.plans="
            f"{given} has no {plan!r}; legal: {axis}=1, or a model that gives this plan",
        )
