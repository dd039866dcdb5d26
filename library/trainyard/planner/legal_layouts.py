"""Legal layouts for a world size, by the same rules that validate a job."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Literal

from trainyard.axes import AXES
from trainyard.base.problems import SpecError, divisors
from trainyard.planner.memory import estimate_memory
from trainyard.planner.micro_batches import (
    chosen_micro_batch_size,
    legal_micro_batch_size,
    plan_batch,
)
from trainyard.planner.pipeline_cost import plan_pipeline
from trainyard.planner.results import LayoutOption, RankedLayout, ResumeOption
from trainyard.planner.speed.prediction import Predictor
from trainyard.spec.auto import AUTO, expected_device, resolved
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.rules import check_without_layout, layout_problems
from trainyard.training.known_devices import Slot
from trainyard.training.pipeline_schedule import least_microbatches

_NAMES = [axis.name for axis in AXES]
_BY_MESH = sorted(AXES, key=lambda axis: axis.mesh_order)
MAX_LISTED = 24
"""Maximum number of layouts in a list; further layouts are only counted."""
LEAST_LISTED = 4
"""Number of layouts that may be listed per number of slots even if this exceeds `LISTED_IN_ALL`."""
LISTED_IN_ALL = 512
"""Maximum number of layouts in a request for many numbers of slots."""
MAX_RANKED = 256
"""Maximum number of legal layouts to compare, nearest to the job's own axes first. The comparison
takes 0.7 ms per layout."""
RANKED_LISTED = 12
"""Maximum number of ranked layouts in a plan."""


class LegalLayouts:
    """Legal layouts of a job on any number of slots.

    Rules for axes that divide sequences and layers do not depend on axes inside a sequence or a
    matrix (`Axis.scope`). So the sizes of each scope are checked once for all numbers of slots.
    There are two exceptions: an axis that regroups the ranks of other axes, and
    `compile.enabled = "auto"`, because `async_tp` needs compiled blocks but some pipelines forbid
    them.
    """

    def __init__(
        self, spec: JobSpec, *, slots: Collection[Slot] = (), predictor: Predictor | None = None
    ) -> None:
        self._spec, self._slots, self._predictor = spec, slots, predictor
        self._device = expected_device(spec, slots)
        self._is_tied = spec.parallelism.async_tp and spec.compile.enabled == AUTO
        self._known: dict[tuple[int, ...], tuple[str, ...]] = {}

    def on(self, world_size: int, *, at_most: int = MAX_LISTED) -> ResumeOption:
        """Return up to `at_most` legal layouts for a number of slots, or why none is legal.

        A layout keeps the job's micro-batch size if this size is legal, and leaves few slots idle
        or the number of data-parallel ranks is the job's own; otherwise a smaller size is chosen
        (`chosen_micro_batch_size`, `legal_micro_batch_size`). The layout of the job's own
        axes comes first, if it has this number of slots. The others are sorted by the number of
        changed sizes among cp, tp and pp, then by the number of replicas, fewest first.

        Raises:
            ValueError: `world_size` is not positive.
        """
        if world_size < 1:
            raise ValueError(f"world_size={world_size} must be positive")
        try:
            whole = Layout(dp_shard=world_size)
            check_without_layout(self._spec.on_layout(whole), slots=self._slots)
        except SpecError as error:
            reasons = dict.fromkeys(problem.detail for problem in error.problems)
            return ResumeOption(world_size=world_size, layouts=(), reason="; ".join(reasons))
        candidates, legal = self._legal(world_size)
        return ResumeOption(
            world_size=world_size,
            layouts=tuple(self._option(layout) for layout in legal[:at_most]),
            more=max(0, len(legal) - at_most),
            # The problems of the nearest layout explain best why none is legal.
            reason=None if legal else "; ".join(self._problems(candidates[0])),
        )

    def ranked(self, world_size: int) -> tuple[tuple[RankedLayout, ...], int]:
        """Return the best legal layouts for a number of slots, and how many layouts were compared.

        The fastest layout comes first; layouts that do not fit into memory come last. The job's own
        layout is always listed, even if others are better. Requires a predictor.
        """
        _, legal = self._legal(world_size)
        options = [self._option(layout) for layout in legal[:MAX_RANKED]]
        own = own_layout(self._spec, world_size)
        options.sort(key=_rank)
        listed = options[:RANKED_LISTED]
        if own in legal and all(each.layout != own for each in listed):
            listed[-1:] = [each for each in options if each.layout == own]
        return tuple(map(self._ranked, listed)), len(options)

    def _legal(self, world_size: int) -> tuple[list[Layout], list[Layout]]:
        """Return two lists for a number of slots: all layouts, and the legal layouts. Both are
        sorted by distance from the job's own axes, nearest first."""
        own = own_layout(self._spec, world_size)
        candidates = list(self._candidates(world_size))
        candidates.sort(key=lambda layout: _distance(layout, own, self._spec))
        return candidates, [layout for layout in candidates if not self._problems(layout)]

    def _candidates(self, world_size: int) -> Iterator[Layout]:
        """Yield each way to write `world_size` as a product of the axes.

        An axis that regroups ranks of other axes gets each size that divides the number of ranks.
        """
        factors = [axis.name for axis in AXES if axis.multiplies_world]
        for product in _factorizations(world_size, len(factors)):
            sizes = [dict(zip(factors, product, strict=True))]
            for axis in (axis for axis in AXES if not axis.multiplies_world):
                sizes = [
                    {**known, axis.name: size}
                    for known in sizes
                    for size in divisors(math.prod(known[name] for name in axis.borrows_from))
                ]
            yield from (Layout(**each) for each in sizes)

    def _problems(self, layout: Layout) -> tuple[str, ...]:
        borrows = any(layout.size(axis.name) > 1 for axis in AXES if not axis.multiplies_world)
        if self._is_tied or borrows:
            return self._problems_of(tuple(layout.sizes.values()))
        scopes = (_within(layout, "batch"), _within(layout, "sequence"))
        return tuple(text for sizes in scopes for text in self._problems_of(sizes))

    def _problems_of(self, sizes: tuple[int, ...]) -> tuple[str, ...]:
        found = self._known.get(sizes)
        if found is None:
            layout = Layout(**dict(zip(_NAMES, sizes, strict=True)))
            try:
                problems = layout_problems(self._candidate(layout), layout)
                found = tuple(problem.detail for problem in problems)
            except ValueError as error:
                found = (str(error),)
            self._known[sizes] = found
        return found

    def _option(self, layout: Layout) -> LayoutOption:
        spec = self._candidate(layout)
        return option(spec, layout, slots=self._slots, predictor=self._predictor)

    def _ranked(self, found: LayoutOption) -> RankedLayout:
        resets = _resets(self._spec, self._candidate(found.layout))
        return RankedLayout(**dict(found), resets=resets)

    def _candidate(self, layout: Layout) -> JobSpec:
        return resolved(_on_layout(self._spec, layout), self._device)


def option(
    spec: JobSpec,
    layout: Layout,
    *,
    slots: Collection[Slot] = (),
    predictor: Predictor | None = None,
) -> LayoutOption:
    """Return a layout with its batch, pipeline, memory and predicted speed."""
    partition = spec.batch_partition(layout)
    memory = estimate_memory(spec, layout, partition)
    available = smallest_memory(spec, slots)
    fits = None if available is None else memory.total <= available
    if predictor is not None and available is not None:
        fits = predictor.fits(memory, available)
    return LayoutOption(
        layout=layout,
        name=str(layout),
        batch=plan_batch(partition),
        pipeline=plan_pipeline(spec, layout, partition),
        memory=memory,
        fits=fits,
        speed=None
        if predictor is None
        else predictor.speed(spec, layout, partition=partition, memory=memory),
    )


def _resets(before: JobSpec, after: JobSpec) -> tuple[str, ...]:
    """Return the fields of `parallelism`, other than the axes, that another layout changes."""
    former, new = dict(before.parallelism), dict(after.parallelism)
    return tuple(name for name in new if name not in _NAMES and new[name] != former[name])


def _rank(each: LayoutOption) -> tuple[bool, float]:
    assert each.speed is not None, "layouts are ranked by predictions"
    return each.fits is False, each.speed.step_seconds


def smallest_memory(spec: JobSpec, slots: Collection[Slot]) -> int | None:
    """Return the memory of the smallest slot of the expected kind; None if it is unknown."""
    device = expected_device(spec, slots)
    return min((slot.memory_bytes for slot in slots if slot.device == device), default=None)


def _distance(layout: Layout, own: Layout | None, spec: JobSpec) -> tuple[int, ...]:
    """Return the sort key of a layout: its distance from the job's own axes."""
    now = spec.parallelism.sizes
    others = [axis.name for axis in _BY_MESH if axis.divides != "sequences"]
    changed = sum(layout.size(name) != now[name] for name in others)
    return (
        int(layout != own),
        changed,
        layout.dp_replicate,
        layout.world_size // layout.dp,
        *(layout.size(name) for name in others),
    )


def _within(layout: Layout, scope: Literal["batch", "sequence"]) -> tuple[int, ...]:
    """Return the size of each axis, with 1 for axes outside the scope. Of the two `dp` axes,
    `dp_shard` has the product of both sizes, and `dp_replicate` has 1."""
    sizes = {axis.name: layout.size(axis.name) if axis.scope == scope else 1 for axis in AXES}
    if scope == "batch":
        sizes |= {"dp_replicate": 1, "dp_shard": layout.dp}
    return tuple(sizes.values())


def _factorizations(product: int, factors: int) -> Iterator[tuple[int, ...]]:
    """Yield each factorization of a number into `factors` ordered factors."""
    if factors == 1:
        yield (product,)
        return
    for first in divisors(product):
        for rest in _factorizations(product // first, factors - 1):
            yield (first, *rest)


def _on_layout(spec: JobSpec, layout: Layout) -> JobSpec:
    """Return the job on another layout, with a legal micro-batch size.

    Raises:
        ValueError: no size gives each data-parallel rank enough micro-batches.
    """
    training, given = spec.training, spec.training.micro_batch_size
    rounds = least_microbatches(spec.parallelism.pp_schedule, pp=layout.pp)
    own = own_layout(spec, spec.resources.world_size)
    # A running layout keeps its micro-batch size, as in a resume without overrides.
    choose = legal_micro_batch_size if own and own.dp == layout.dp else chosen_micro_batch_size
    size = choose(training.global_batch_size, layout.dp, at_most=given, rounds=rounds)
    if size is None:
        each = f" with {rounds} micro-batches each" if rounds > 1 else ""
        raise ValueError(
            f"{layout.dp} data-parallel ranks{each} are more than the "
            f"global_batch_size={training.global_batch_size} sequences of a step"
        )
    resized = training.model_copy(update={"micro_batch_size": size})
    return spec.on_layout(layout).model_copy(update={"training": resized})


def own_layout(spec: JobSpec, world_size: int) -> Layout | None:
    """Return the layout with the spec's own axes; None if their product is not this world size."""
    try:
        return spec.layout(world_size)
    except ValueError:
        return None
