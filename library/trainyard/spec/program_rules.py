"""Rules for a job that runs a program instead of the built-in trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainyard.base.problems import Problem, named, nearest
from trainyard.spec.checkpoint_rules import retention
from trainyard.spec.job import TRAINER_SECTIONS, JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import KEPT, CheckpointSection
from trainyard.spec.sections.program import ProgramSection


def sections(spec: JobSpec) -> Iterator[Problem]:
    """A job with a program must not change a section of the built-in trainer."""
    for name in TRAINER_SECTIONS:
        if getattr(spec, name) != JobSpec.model_fields[name].default:
            yield _left_out(name)


def given_sections(spec: JobSpec) -> Iterator[Problem]:
    """A new job with a program must not name a section of the trainer, even with its defaults.

    A document that names all of these sections is legal, because `show --json` writes such
    documents.
    """
    given = spec.model_fields_set & {*TRAINER_SECTIONS}
    if given == {*TRAINER_SECTIONS}:
        return
    for name in TRAINER_SECTIONS:
        if name in given and getattr(spec, name) == JobSpec.model_fields[name].default:
            yield _left_out(name)


def _left_out(name: str) -> Problem:
    return Problem(
        pointer=f"/{name}",
        detail=f"{name} belongs to the built-in trainer, and the job has a program; legal: no "
        f"{name}, or no program",
    )


def saving(spec: JobSpec) -> Iterator[Problem]:
    """A program controls its own saves, so the fields for saves are illegal."""
    section, default = spec.checkpoint, CheckpointSection()
    for name in CheckpointSection.model_fields:
        value = getattr(section, name)
        if name not in KEPT and value != getattr(default, name):
            yield Problem(
                pointer=f"/checkpoint/{name}",
                detail=f"{named(name, value)}, but a program decides itself when and how it saves; "
                f"legal: no {name}",
            )


def resuming(spec: JobSpec) -> Iterator[Problem]:
    """An elastic job, and `resume_arguments`, need a program that can resume."""
    program = spec.program
    assert program is not None, "the rules of programs apply to programs"
    if spec.resources.size_range is not None and program.resume != "any_world_size":
        yield Problem(
            pointer="/program/resume",
            detail=f"resume={program.resume!r}, but a job with min_world_size or max_world_size "
            "changes its number of slots; legal: any_world_size, or no range",
        )
    if program.resume_arguments and program.resume == "never":
        yield Problem(
            pointer="/program/resume_arguments",
            detail="resume_arguments do nothing with resume='never'; legal: no resume_arguments, "
            "or resume='same_world_size' or 'any_world_size'",
        )


def layouts(spec: JobSpec) -> Iterator[Problem]:
    """Layouts must be unique; they need `torchrun` as `launcher` and `any_world_size` as
    `resume`."""
    program = spec.program
    assert program is not None, "the rules of programs apply to programs"
    if not program.layouts:
        return
    for name, legal in (("resume", "any_world_size"), ("launcher", "torchrun")):
        if (given := getattr(program, name)) != legal:
            yield Problem(
                pointer=f"/program/{name}",
                detail=f"{named(name, given)}, but the program has layouts; legal: {legal}, or no "
                "layouts",
            )
    first: dict[Layout, int] = {}
    for index, each in enumerate(program.layouts):
        if (before := first.setdefault(each.axes, index)) != index:
            yield Problem(
                pointer=f"/program/layouts/{index}",
                detail=f"{each.axes} is already at /program/layouts/{before}; legal: each layout "
                "once",
            )
    yield from _sizes_of_layouts(spec, program)


def _sizes_of_layouts(spec: JobSpec, program: ProgramSection) -> Iterator[Problem]:
    """The job's number of slots needs a layout; so do the minimum and maximum of an elastic job."""
    sizes, own = program.world_sizes, spec.resources.world_size
    low, high = spec.resources.size_range or (own, own)
    given = {"world_size": own, "min_world_size": low, "max_world_size": high}
    for name, size in given.items():
        # An absent end of the range is `world_size`, whose problem is reported already.
        if size not in sizes and (name == "world_size" or size != own):
            yield Problem(
                pointer=f"/resources/{name}",
                detail=f"{name}={size} has no layout in program.layouts; {nearest(size, sizes)}",
            )


PROGRAM: tuple[Callable[[JobSpec], Iterator[Problem]], ...] = (
    sections,
    saving,
    retention,
    resuming,
    layouts,
)
"""Rules for every job with a program."""
