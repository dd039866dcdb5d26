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
