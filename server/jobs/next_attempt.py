"""Overrides and plan of the attempt that a resume request leads to. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from server.errors import InvalidRequestError
from trainyard.axes import MESH_AXES
from trainyard.base.problems import Problem, SpecError
from trainyard.planner.micro_batches import chosen_micro_batch_size, legal_micro_batch_size
from trainyard.planner.plan import plan, resume_options
from trainyard.planner.results import Plan
from trainyard.protocol.attempt import SECTIONS, SINGLE_FIELDS, Overrides
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.spec.auto import DeviceKind
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.parallelism import ParallelismSection
from trainyard.training.known_devices import Slot
from trainyard.training.pipeline_schedule import least_microbatches


@dataclass(frozen=True)
class Baseline:
    """What held so far: that of the newest attempt, or the spec's own before the first."""

    spec: JobSpec
    """As submitted."""
    overrides: Overrides
    layout: Layout
    device: DeviceKind | None = None
    """Kind of the newest attempt's slots; None before the first."""

    @property
    def effective(self) -> JobSpec:
        """The spec with the overrides; what is `auto` stays so."""
        return self.overrides.apply(self.spec)


@dataclass(frozen=True)
class ResumeTarget:
    """The next attempt."""

    overrides: Overrides
    """All that it changes against the job's spec."""
    effective: JobSpec
    """The spec with the overrides; what is `auto` stays so."""
    plan: Plan


def work_out(
    baseline: Baseline, request: ResumeRequest, *, slots: Collection[Slot] = ()
) -> ResumeTarget:
    """Return what a request makes of the next attempt; what it leaves out stays as it was.

    Another world size alone takes the planner's first legal layout. On another number of
    data-parallel ranks the micro-batch size is lowered where the old one is no longer legal or
    leaves more than a tenth of the slots idle.

    Raises:
        InvalidRequestError: parts of the request disagree, or the job cannot run so.
    """
    requested = request.overrides
    merged = _merged(baseline.overrides, requested, steps=_agreed_steps(request))
    world_size = _agreed_world_size(request)
    changed = merged.apply(baseline.spec)
    layout = _layout(baseline, request, changed, world_size)
    final = changed.model_copy(
        update={
            "parallelism": _with_axes(changed, layout, before=baseline),
            "resources": changed.resources.model_copy(update={"world_size": layout.world_size}),
            "training": changed.training.model_copy(
                update={"micro_batch_size": _micro_batch_size(changed, request, layout, baseline)}
            ),
        }
    )
    overrides = _difference(baseline.spec, final)
    try:
        planned = plan(final, slots=slots)
    except SpecError as error:
        raise InvalidRequestError.of(_in_request(error.problems)) from None
    return ResumeTarget(overrides, final, planned)


def _merged(before: Overrides, requested: Overrides, *, steps: int | None) -> Overrides:
    given = {
        name: value
        for name in Overrides.model_fields
        if (value := getattr(requested, name)) is not None
    }
    return before.model_copy(update=given | ({} if steps is None else {"steps": steps}))


def _agreed_steps(request: ResumeRequest) -> int | None:
    inner = request.overrides.steps
    if request.steps is not None and inner is not None and request.steps != inner:
        raise InvalidRequestError.at(
            "/overrides/steps", f"steps={inner} here, but {request.steps} in /steps"
        )
    return request.steps or inner


def _agreed_world_size(request: ResumeRequest) -> int | None:
    """Return the world size that the request names; a section's default is not named."""
    resources = request.overrides.resources
    inner = (
        resources.world_size
        if resources is not None and "world_size" in resources.model_fields_set
        else None
    )
    if request.world_size is not None and inner is not None and request.world_size != inner:
        raise InvalidRequestError.at(
            "/overrides/resources/world_size",
            f"world_size={inner} here, but {request.world_size} in /world_size",
        )
    return request.world_size or inner


def _layout(
    baseline: Baseline, request: ResumeRequest, spec: JobSpec, world_size: int | None
) -> Layout:
    axes = request.overrides.parallelism
    if axes is not None:
        return _given_layout(axes, world_size=world_size, before=baseline.layout)
    if world_size is None or world_size == baseline.layout.world_size:
        return baseline.layout
    option = resume_options(spec, world_sizes=[world_size])[0]
    if not option.layouts:
        detail = f"world_size={world_size} has no legal layout: {option.reason}"
        raise InvalidRequestError.at("/world_size", detail)
    return option.layouts[0].layout


def _given_layout(axes: ParallelismSection, *, world_size: int | None, before: Layout) -> Layout:
    if world_size is None:
        product = math.prod(axes.sizes[axis.name] for axis in MESH_AXES)
        world_size = before.world_size if axes.dp_shard == -1 else product
    try:
        return Layout.fill(world_size=world_size, **axes.sizes)
    except SpecError as error:
        raise InvalidRequestError.of(_in_request(error.problems)) from None


def _with_axes(spec: JobSpec, layout: Layout, *, before: Baseline) -> ParallelismSection:
    """Return the section that gives the layout: unchanged where its own axes do.

    What was chosen for other axes and is not chosen anew does not follow (`JobSpec.on_layout`).
    """
    section = spec.parallelism
    if _own_layout(spec, layout.world_size) != layout:
        section = section.model_copy(update=layout.model_dump())
    old = before.effective
    moved = old.on_layout(layout).parallelism
    stale = {
        name: getattr(moved, name)
        for name in ParallelismSection.model_fields.keys() - Layout.model_fields.keys()
        if getattr(section, name) == getattr(old.parallelism, name)
    }
    return section.model_copy(update=stale)


def _own_layout(spec: JobSpec, world_size: int) -> Layout | None:
    try:
        return spec.layout(world_size)
    except ValueError:
        return None  # its axes give no layout of this size


def _micro_batch_size(
    spec: JobSpec, request: ResumeRequest, layout: Layout, before: Baseline
) -> int:
    """Return the requested size, else the old one, else one below it that idles less."""
    size = spec.training.micro_batch_size
    if request.overrides.micro_batch_size is not None:
        return size
    rounds = least_microbatches(spec.parallelism.pp_schedule, pp=layout.pp)
    same = layout.dp == before.layout.dp
    choose = legal_micro_batch_size if same else chosen_micro_batch_size
    legal = choose(spec.training.global_batch_size, layout.dp, at_most=size, rounds=rounds)
    return size if legal is None else legal  # the plan refuses a layout that has none


def _difference(submitted: JobSpec, final: JobSpec) -> Overrides:
    """Return the least overrides that make the submitted spec the final one."""
    sections = {
        name: getattr(final, name)
        for name in SECTIONS
        if getattr(final, name) != getattr(submitted, name)
    }
    places = {name: field.split(".") for name, field in SINGLE_FIELDS.items()}
    numbers = {
        name: getattr(getattr(final, section), field)
        for name, (section, field) in places.items()
        if getattr(getattr(final, section), field) != getattr(getattr(submitted, section), field)
    }
    return Overrides(**sections, **numbers)


def _in_request(problems: Sequence[Problem]) -> list[Problem]:
    """Point each problem of the resulting spec at the field of the request."""
    moved = {
        "/training/steps": "/steps",
        "/training/micro_batch_size": "/overrides/micro_batch_size",
        "/resources/world_size": "/world_size",
    }
    return [
        Problem(pointer=moved.get(p.pointer, f"/overrides{p.pointer}"), detail=p.detail)
        for p in problems
    ]
