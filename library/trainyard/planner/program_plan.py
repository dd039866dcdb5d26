"""Plan of a program: its slots, and the quantities that are unknown before it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from trainyard.base.problems import Problem, SpecError, named, refusal
from trainyard.planner.results import LayoutOption, ListedLayout, ProgramPlan, ResumeOption
from trainyard.spec.auto import expected_device
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.precision import slots_for
from trainyard.spec.sections.parallelism import ParallelismSection
from trainyard.spec.sections.program import ProgramSection
from trainyard.training.known_devices import Slot

UNKNOWN = (
    "memory of its ranks, and whether they fit",
    "parameters, FLOPs and tokens",
    "size of its checkpoints",
)


def plan_program(
    spec: JobSpec, *, slots: Collection[Slot] = (), layout: Layout | None = None
) -> ProgramPlan:
    """Return the plan of a valid job with a program.

    Args:
        spec: the spec of the job, with or without the overrides of an attempt (`Overrides.apply`).
        slots: slots of the nodes, if known; one slot of each kind is enough.
        layout: layout of the attempt; by default the first for the number of slots.
    """
    program, layout = _program(spec), layout or spec.layout()
    return ProgramPlan(
        world_size=layout.world_size,
        layout=layout,
        name=spec.layout_name(layout),
        layouts=tuple(
            ListedLayout(world_size=each.world_size, layout=each.axes, name=str(each))
            for each in program.layouts
        ),
        device=expected_device(spec, slots),
        steps=program.steps,
        command=tuple(program.words(layout, begun_before=False, checkpoint=None)),
        unknown=UNKNOWN if program.steps is not None else (*UNKNOWN, "how long it takes"),
        warnings=tuple(_warnings(spec, program, slots)),
    )


def program_options(spec: JobSpec, world_sizes: Iterable[int]) -> list[ResumeOption]:
    """Return a program's layouts for each world size, or the reason why it cannot resume."""
    options = []
    for size in world_sizes:
        try:
            layouts, reason = _legal(spec, size), None
        except SpecError as error:
            layouts, reason = [], "; ".join(problem.detail for problem in error.problems)
        listed = tuple(_option(spec, each) for each in layouts)
        options.append(ResumeOption(world_size=size, layouts=listed, reason=reason))
    return options


def next_layout(
    spec: JobSpec,
    present: Layout,
    *,
    world_size: int | None = None,
    section: ParallelismSection | None = None,
) -> Layout:
    """Return the layout of a program's next attempt.

    Args:
        spec: the spec of the job, with the number of slots of the present layout.
        present: layout of the newest attempt; used again unless `world_size` or `section` changes
            it.
        world_size: new number of slots; the first layout for this number is used.
        section: axis sizes that select a layout.

    Raises:
        SpecError: no layout of the program has this number of slots or these sizes, or the section
            has an option of the built-in trainer.
    """
    if section is not None:
        return _chosen(spec, section, section.layout_after(present, world_size=world_size))
    if world_size is None or world_size == present.world_size:
        return present
    return _legal(spec, world_size)[0]


def _chosen(spec: JobSpec, section: ParallelismSection, layout: Layout) -> Layout:
    default = ParallelismSection().options
    changed = [name for name, value in section.options.items() if value != default[name]]
    if changed:
        raise SpecError(
            Problem(
                pointer=f"/parallelism/{name}",
                detail=f"{named(name, section.options[name])}, but a program has only the axes; "
                f"legal: no {name}",
            )
            for name in changed
        )
    legal = _legal(spec, layout.world_size)
    if layout not in legal:
        raise refusal(
            "/parallelism",
            f"{layout} is not in program.layouts; legal on {layout.slots_in_words}: "
            f"{', '.join(map(str, legal))}",
        )
    return layout


def _legal(spec: JobSpec, world_size: int) -> list[Layout]:
    """Return the layouts of a number of slots, in order of preference.

    Raises:
        SpecError: the program cannot resume on this number of slots.
    """
    if reason := size_refusal(spec, world_size):
        raise refusal("/resources/world_size", reason)
    program = _program(spec)
    return program.layouts_on(world_size) if program.layouts else [spec.layout(world_size)]


def _option(spec: JobSpec, layout: Layout) -> LayoutOption:
    name = spec.layout_name(layout)
    return LayoutOption(layout=layout, name=name, batch=None, pipeline=None, memory=None, fits=None)


def size_refusal(spec: JobSpec, world_size: int) -> str | None:
    """Return why `program.resume` forbids a number of slots, else None; layouts are not checked."""
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
