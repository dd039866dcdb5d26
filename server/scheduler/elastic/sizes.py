"""Pure functions for the size of an elastic job and the cost of a change.

See docs/lifecycle-sizes.md, 49-52.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass

from server.core.errors import InvalidRequestError
from server.jobs.jobs.next_attempt import Baseline, NextAttempt, plan_next_attempt
from trainyard.planner.results import Plan, ProgramPlan
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.spec.layout import Layout, data_parallel_layouts
from trainyard.training.known_devices import Slot

GAIN_OVER_COST = 3.0
"""Minimum time that a change of size must save, as a multiple of the time that the change costs.
The factor is large because the estimate counts only idle ranks, and because a job may end, fail or
shrink before the change pays off."""


@dataclass(frozen=True)
class Size:
    """A number of slots with its fastest layout."""

    next: NextAttempt
    """Settings of an attempt with this size."""
    speed: float
    """Expected throughput, relative to one rank that never idles."""

    @property
    def layout(self) -> Layout:
        """Layout of this size."""
        return self.next.plan.layout

    @property
    def world_size(self) -> int:
        """Number of slots."""
        return self.next.plan.world_size

    @property
    def request(self) -> ResumeRequest:
        """Request for a resize to this size."""
        spec = self.next.effective
        if spec.program is not None:
            axes = spec.parallelism.model_copy(update=self.layout.sizes) if spec.has_axes else None
            return ResumeRequest(world_size=self.world_size, overrides=Overrides(parallelism=axes))
        overrides = Overrides(
            parallelism=spec.parallelism, micro_batch_size=spec.training.micro_batch_size
        )
        return ResumeRequest(world_size=self.world_size, overrides=overrides)


def fastest(baseline: Baseline, world_size: int, *, slots: Collection[Slot] = ()) -> Size | None:
    """Return the fastest legal layout for a number of slots; None if no layout is legal.

    Only `dp_replicate` and `dp_shard` change; the micro-batch size changes by the rules of a
    resume. Of equally fast layouts, the one nearest to the axes in `baseline` is returned.

    Args:
        baseline: the settings that a person chose last.
        world_size: the number of slots.
        slots: kinds of slots on the registered nodes; the layout must be legal on them and fit into
            their memory.
    """
    found = [
        Size(each, _speed_of(each.plan))
        for layout in data_parallel_layouts(baseline.effective.parallelism.sizes, world_size)
        if (each := _planned(baseline, layout, slots)) is not None
    ]
    return max(found, key=lambda size: size.speed, default=None)


def search_best_size(
    baseline: Baseline,
    world_sizes: Iterable[int],
    *,
    fits: Callable[[Layout], bool],
    slots: Collection[Slot] = (),
) -> Generator[None, None, Size | None]:
    """Return the fastest size that fits; None if no size fits.

    Of equally fast sizes, the result is the smallest.

    Yields after each size, so that the caller can pause.

    Args:
        baseline: the settings that a person chose last.
        world_sizes: the numbers of slots to choose from.
        fits: returns whether a layout could start now.
        slots: as in `fastest`.
    """
    best: Size | None = None
    for world_size in sorted(world_sizes, reverse=True):
        if best is not None and best.speed > world_size:
            break  # no layout is faster than its number of ranks
        size = fastest(baseline, world_size, slots=slots)
        faster = size is not None and (best is None or size.speed >= best.speed)
        if size is not None and faster and fits(size.layout):
            best = size
        yield
    return best


def _speed_of(plan: Plan | ProgramPlan) -> float:
    """Return the expected throughput of a layout, relative to one rank that never idles.

    A rank idles while it has no sequence, and in the bubbles of a pipeline. Communication is
    ignored. A program's ranks are assumed never to idle, so more slots are always faster.
    """
    if isinstance(plan, ProgramPlan):
        return plan.world_size
    bubble = 0.0 if plan.pipeline is None else plan.pipeline.bubble_share
    return plan.world_size * (1 - plan.batch.idle_share) * (1 - bubble)


def is_worth_its_cost(
    *, seconds_left: float, speed: float, new_speed: float, restart_seconds: float
) -> bool:
    """Return whether a running job gains enough from a change of size.

    Args:
        seconds_left: time to the end of the job at its present size.
        speed: expected throughput now.
        new_speed: expected throughput after the change, in the unit of `speed`.
        restart_seconds: time without training because of the change.
    """
    if new_speed <= speed:
        return False
    return seconds_left * (1 - speed / new_speed) >= GAIN_OVER_COST * restart_seconds


def _planned(baseline: Baseline, layout: Layout, slots: Collection[Slot]) -> NextAttempt | None:
    """Return the settings for a layout; None if the layout is illegal or needs too much memory."""
    overrides = Overrides()
    # Otherwise the axes stay as a person wrote them, even `dp_shard=-1`; a program has no axes.
    if layout != baseline.layout and baseline.spec.program is None:
        section = baseline.effective.parallelism.model_copy(update=layout.model_dump())
        overrides = Overrides(parallelism=section)
    request = ResumeRequest(world_size=layout.world_size, overrides=overrides)
    try:
        following = plan_next_attempt(baseline, request, slots=slots)
    except InvalidRequestError:
        return None
    return None if following.plan.fits is False else following
