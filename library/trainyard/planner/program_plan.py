"""Plan of a program: its slots, and the quantities that are unknown before it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from trainyard.base.problems import Problem
from trainyard.planner.results import LayoutOption, ProgramPlan, ResumeOption
from trainyard.spec.auto import expected_device
from trainyard.spec.job import JobSpec
from trainyard.spec.precision import slots_for
from trainyard.spec.sections.program import ProgramSection
from trainyard.training.known_devices import Slot

UNKNOWN = (
    "memory of its ranks, and whether they fit",
    "parameters, FLOPs and tokens",
    "size of its checkpoints",
)


def plan_program(spec: JobSpec, *, slots: Collection[Slot] = ()) -> ProgramPlan:
    """Return the plan of a valid job with a program.

    Args:
        spec: the job, or an attempt's `Overrides.apply` of it.
        slots: slots of the nodes, if known; one slot of each kind is enough.
    """
    program, layout = _program(spec), spec.layout()
    return ProgramPlan(
        world_size=layout.world_size,
        layout=layout,
        name=spec.layout_name(layout),
        device=expected_device(spec, slots),
        steps=program.steps,
        command=tuple(program.words(begun_before=False, checkpoint=None)),
        unknown=UNKNOWN if program.steps is not None else (*UNKNOWN, "how long it takes"),
        warnings=tuple(_warnings(spec, program, slots)),
    )


def program_options(spec: JobSpec, world_sizes: Iterable[int]) -> list[ResumeOption]:
    """Return, for each world size, a program's only layout or the reason why it cannot resume."""
    options = []
    for size in world_sizes:
        layout, reason = spec.layout(size), size_refusal(spec, size)
        name = spec.layout_name(layout)
        option = LayoutOption(
            layout=layout, name=name, batch=None, pipeline=None, memory=None, fits=None
        )
        layouts = (option,) if reason is None else ()
        options.append(ResumeOption(world_size=size, layouts=layouts, reason=reason))
    return options


def size_refusal(spec: JobSpec, world_size: int) -> str | None:
    """Return the reason why a program cannot resume on a number of slots; None if it can."""
    program, own = _program(spec), spec.resources.world_size
    if program.resume != "same_world_size" or world_size == own:
        return None
    return (
        f"world_size={world_size}, but program.resume='same_world_size' resumes only on the "
        f"same number of slots; legal: {own}"
    )


def _warnings(spec: JobSpec, program: ProgramSection, slots: Collection[Slot]) -> Iterator[Problem]:
    if slots and not slots_for(spec, slots):
        yield Problem(
            pointer="/resources/device",
            detail=f"no node has a slot of device={spec.resources.device!r}: the job waits until "
            "one joins",
        )
    if program.resume == "never" and spec.retry.max_retries:
        yield Problem(
            pointer="/program/resume",
            detail="resume='never': a retry starts the program again, and earlier work is lost "
            "unless the program finds it itself; with 'any_world_size' or 'same_world_size' it "
            "continues from its last run.checkpoint",
        )
    if program.needs_checkpoint:
        yield Problem(
            pointer="/program/resume_arguments",
            detail="resume_arguments name a checkpoint, and are left out until the job has one",
        )


def _program(spec: JobSpec) -> ProgramSection:
    assert spec.program is not None, "the job runs a program"
    return spec.program
