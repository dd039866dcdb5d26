"""Pure functions that apply a resume request to the settings of the newest attempt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from server.core.errors import InvalidRequestError
from trainyard.base.problems import Problem, SpecError
from trainyard.planner.legal_layouts import own_layout
from trainyard.planner.micro_batches import chosen_micro_batch_size, legal_micro_batch_size
from trainyard.planner.plan import plan_job, resume_options
from trainyard.planner.program_plan import next_layout
from trainyard.planner.results import Plan, ProgramPlan
from trainyard.protocol.attempt import (
    OF_PROGRAMS,
    SECTIONS,
    SECTIONS_OF_PROGRAMS,
    Overrides,
    single_fields,
)
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.spec.auto import DeviceKind
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import CheckpointSection
from trainyard.spec.sections.parallelism import ParallelismSection
from trainyard.training.known_devices import Slot
from trainyard.training.pipeline_schedule import least_microbatches


@dataclass(frozen=True)
class Baseline:
    """Settings of the newest attempt, or of the spec if the job has no attempt."""

    spec: JobSpec
    """The job's spec as submitted."""
    overrides: Overrides
    """Differences of the newest attempt from `spec`."""
    layout: Layout
    device: DeviceKind | None = None
    """Device kind of the newest attempt's slots; None before the first attempt."""

    @property
    def effective(self) -> JobSpec:
        """The spec with the overrides; `auto` stays unresolved."""
        return self.overrides.apply(self.spec)


@dataclass(frozen=True)
class NextAttempt:
    """Settings of the next attempt."""

    overrides: Overrides
    """Differences from the submitted spec, not from the newest attempt."""
    effective: JobSpec
    """The spec with the overrides; `auto` stays unresolved until placement."""
    plan: Plan | ProgramPlan
    """The plan for `effective`."""


def plan_next_attempt(
    baseline: Baseline, request: ResumeRequest, *, slots: Collection[Slot] = ()
) -> NextAttempt:
    """Return the settings of the next attempt; omitted fields of the request keep their values.

    A new world size without a layout gets the planner's first legal layout. If the number of
    data-parallel ranks changes, the old micro-batch size may be illegal or leave more than a tenth
    of the slots idle. In these cases, the size is lowered. The global batch size never changes. The
    plan is checked for the kinds of devices in `slots`.

    Raises:
        InvalidRequestError: fields of the request disagree, or the job cannot run with them.
    """
    _check_kind(baseline.spec, request.overrides)
    steps = _agreed("steps", request.steps, request.overrides.steps, pointer="/overrides/steps")
    merged = _merged(baseline, request.overrides, steps=steps)
    if baseline.spec.program is not None:
        return _next_of_program(baseline, request, merged, slots=slots)
    changed = merged.apply(baseline.spec)
    world_size = _agreed_world_size(request)
    # The micro-batch size and the options of some axes depend on the layout.
    layout = _layout(baseline, request, spec=changed, world_size=world_size)
    size = _micro_batch_size(changed, request, layout=layout, baseline=baseline)
    effective = changed.model_copy(
        update={
            "parallelism": _parallelism(changed, layout, baseline),
            "resources": changed.resources.model_copy(update={"world_size": layout.world_size}),
            "training": changed.training.model_copy(update={"micro_batch_size": size}),
        }
    )
    return _planned(baseline, effective, slots=slots)


def _next_of_program(
    baseline: Baseline, request: ResumeRequest, merged: Overrides, *, slots: Collection[Slot]
) -> NextAttempt:
    """Return a program's next settings; the requested axes select one of the program's layouts."""
    changed = merged.model_copy(update={"parallelism": None}).apply(baseline.spec)
    try:
        layout = next_layout(
            changed.on_layout(baseline.layout),
            baseline.layout,
            world_size=_agreed_world_size(request),
            section=request.overrides.parallelism,
        )
    except SpecError as error:
        raise InvalidRequestError.of(_in_request(error.problems)) from None
    return _planned(baseline, changed.on_layout(layout), slots=slots, layout=layout)


def _planned(
    baseline: Baseline,
    effective: JobSpec,
    *,
    slots: Collection[Slot],
    layout: Layout | None = None,
) -> NextAttempt:
    try:
        planned = plan_job(effective, slots=slots, layout=layout)
    except SpecError as error:
        raise InvalidRequestError.of(_in_request(error.problems)) from None
    return NextAttempt(_overrides(baseline.spec, effective), effective, planned)


def _check_kind(spec: JobSpec, requested: Overrides) -> None:
    """Refuse changes to sections that a program does not have."""
    if spec.program is None:
        return
    legal = (*SECTIONS_OF_PROGRAMS, *OF_PROGRAMS)
    if spec.program.layouts:
        legal = ("parallelism", *legal)
    why = "belongs to the built-in trainer, and the job runs a program; legal: " + ", ".join(legal)
    problems = [
        Problem(pointer=f"/overrides/{name}", detail=f"{name} {why}")
        for name in Overrides.model_fields
        if name not in legal and getattr(requested, name) is not None
    ]
    if problems:
        raise InvalidRequestError.of(problems)


def _merged(baseline: Baseline, requested: Overrides, *, steps: int | None) -> Overrides:
    """Return the baseline's overrides, updated with the requested overrides.

    A requested section replaces the whole old section. An omitted priority keeps its value, and so
    does the checkpoint from which the job starts.

    Raises:
        InvalidRequestError: the request changes `checkpoint.start_from`.
    """
    given: dict[str, Any] = {name: value for name, value in requested if value is not None}
    if steps is not None:
        given["steps"] = steps
    if requested.checkpoint is not None:
        given["checkpoint"] = _from_same_start(baseline.spec, requested.checkpoint)
    merged = baseline.overrides.model_copy(update=given)
    if requested.resources is None or "priority" in requested.resources.model_fields_set:
        return merged
    return merged.with_priority(baseline.spec, baseline.effective.resources.priority)


def _from_same_start(spec: JobSpec, requested: CheckpointSection) -> CheckpointSection:
    start, named = spec.checkpoint.start_from, requested.start_from
    if named not in {start, None}:
        detail = f"{named!r}, but the start of a job stays the same; legal: {start!r}, or a new job"
        raise InvalidRequestError.at("/overrides/checkpoint/start_from", detail)
    return requested.model_copy(update={"start_from": start})


def _agreed_world_size(request: ResumeRequest) -> int | None:
    """Return the world size that the request sets; the default of an omitted field is ignored."""
    resources, field = request.overrides.resources, "world_size"
    inner = None
    if resources is not None and field in resources.model_fields_set:
        inner = resources.world_size
    return _agreed(field, request.world_size, inner, pointer=f"/overrides/resources/{field}")


def _agreed(field: str, outer: int | None, inner: int | None, *, pointer: str) -> int | None:
    """Return the value of a field that a request can set in two places; two values must agree."""
    if outer is not None and inner is not None and outer != inner:
        raise InvalidRequestError.at(pointer, f"{field}={inner} here, but {outer} in /{field}")
    return outer or inner


def _layout(
    baseline: Baseline, request: ResumeRequest, *, spec: JobSpec, world_size: int | None
) -> Layout:
    section = request.overrides.parallelism
    if section is not None:
        return _given_layout(section, world_size=world_size, before=baseline.layout)
    if world_size is None or world_size == baseline.layout.world_size:
        return baseline.layout
    option = resume_options(spec, world_sizes=[world_size])[0]
    if not option.layouts:
        detail = f"world_size={world_size} has no legal layout: {option.reason}"
        raise InvalidRequestError.at("/world_size", detail)
    return option.layouts[0].layout


def _given_layout(section: ParallelismSection, *, world_size: int | None, before: Layout) -> Layout:
    try:
        return section.layout_after(before, world_size=world_size)
    except SpecError as error:
        raise InvalidRequestError.of(_in_request(error.problems)) from None


def _parallelism(spec: JobSpec, layout: Layout, baseline: Baseline) -> ParallelismSection:
    """Return the section `parallelism` of the next attempt, with the axes of `layout`.

    The axes in the spec stay as they are if they already give this layout. `JobSpec.on_layout`
    drops an option that does not fit the layout, unless the request set the option.
    """
    section = spec.parallelism
    if own_layout(spec, layout.world_size) != layout:
        section = section.model_copy(update=layout.model_dump())
    old = baseline.effective
    moved = old.on_layout(layout).parallelism
    stale = {
        name: getattr(moved, name)
        for name in ParallelismSection.model_fields.keys() - Layout.model_fields.keys()
        if getattr(section, name) == getattr(old.parallelism, name)
    }
    return section.model_copy(update=stale)


def _micro_batch_size(
    spec: JobSpec, request: ResumeRequest, *, layout: Layout, baseline: Baseline
) -> int:
    """Return the requested size; otherwise the old size, or a smaller one that fits the layout."""
    size = spec.training.micro_batch_size
    if request.overrides.micro_batch_size is not None:
        return size
    rounds = least_microbatches(spec.parallelism.pp_schedule, pp=layout.pp)
    same = layout.dp == baseline.layout.dp
    choose = legal_micro_batch_size if same else chosen_micro_batch_size
    legal = choose(spec.training.global_batch_size, layout.dp, at_most=size, rounds=rounds)
    return size if legal is None else legal  # without a legal size, the plan is refused


def _overrides(submitted: JobSpec, effective: JobSpec) -> Overrides:
    """Return the smallest overrides that turn the submitted spec into the effective spec."""
    paths = {name: name for name in SECTIONS} | single_fields(submitted)
    found = {
        name: value
        for name, path in paths.items()
        if (value := attrgetter(path)(effective)) != attrgetter(path)(submitted)
    }
    return Overrides(**found)


def _in_request(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems of the effective spec, each pointing at the request's field."""
    moved = {
        "/training/steps": "/steps",
        "/program/steps": "/steps",
        "/training/micro_batch_size": "/overrides/micro_batch_size",
        "/resources/world_size": "/world_size",
    }
    return [
        Problem(pointer=moved.get(p.pointer, f"/overrides{p.pointer}"), detail=p.detail)
        for p in problems
    ]
