"""Fields that say something and would do nothing, because of what other fields say.

What a new job says so is refused. A job that was stored before goes on, and so does one whose
layout has changed: there the plan warns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from specs.architectures import ARCHITECTURES
from specs.job import JobSpec
from specs.precision import LINEAR_LAYERS
from specs.problems import Problem, named
from specs.sections.parallelism import ActivationCheckpointSection, ParallelismSection
from specs.sections.training import LrScheduleSection

HEAD = "output"
"""Name of our head, which is never quantized."""


def overlap(spec: JobSpec) -> Iterator[Problem]:
    """Only inductor knows how to fuse communication with products."""
    if spec.parallelism.async_tp and spec.compile.enabled and spec.compile.backend != "inductor":
        yield Problem(
            pointer="/parallelism/async_tp",
            detail=f"async_tp=true does nothing with compile.backend={spec.compile.backend!r}; "
            "legal: false, or compile.backend='inductor'",
        )


def decay(spec: JobSpec) -> Iterator[Problem]:
    """A cosine falls from the end of its warm-up to the end of the schedule."""
    section, default = spec.lr_schedule, LrScheduleSection()
    if section.name != "cosine":
        return
    for field in ("decay_steps", "decay_tokens", "decay_shape"):
        value = getattr(section, field)
        if value != getattr(default, field):
            yield Problem(
                pointer=f"/lr_schedule/{field}",
                detail=f"{named(field, value)} does nothing with name='cosine', which falls all "
                f"the way in one shape; legal: no {field}, or name='warmup_stable_decay'",
            )


def exclusions(spec: JobSpec) -> Iterator[Problem]:
    """A part of a name that no layer has leaves nothing out; an own model's names are its own."""
    section = spec.quantization
    known = spec.model.size in ARCHITECTURES[spec.model.family]
    if section.recipe == "none" or spec.model.factory is not None or not known:
        return
    inner = [name for names in LINEAR_LAYERS.values() for name in names]
    layers = range(spec.architecture.n_layers)
    names = {HEAD, *(f"layers.{index}.{name}" for index in layers for name in inner)}
    unknown = [part for part in section.exclude if not any(part in name for name in names)]
    if unknown:
        yield Problem(
            pointer="/quantization/exclude",
            detail=f"{named('exclude', section.exclude)}: no layer has {', '.join(unknown)} in its "
            f"name; legal: parts of {HEAD} and of layers.0 to layers.{len(layers) - 1}, each with "
            f"{', '.join(inner)}",
        )


def pipeline(spec: JobSpec) -> Iterator[Problem]:
    """What cuts a pipeline serves another layout of the same job."""
    axes, default = spec.parallelism, ParallelismSection()
    if axes.pp > 1:
        return
    for field in ("pp_schedule", "pp_microbatches", "pp_layers_per_stage"):
        value = getattr(axes, field)
        if value != getattr(default, field):
            yield Problem(
                pointer=f"/parallelism/{field}",
                detail=f"{named(field, value)} does nothing with pp=1; it counts on layouts with a "
                "pipeline",
            )


def budget(spec: JobSpec) -> Iterator[Problem]:
    """The other modes keep what they keep."""
    section, default = spec.activation_checkpoint, ActivationCheckpointSection()
    if section.mode != "memory_budget" and section.memory_budget != default.memory_budget:
        yield Problem(
            pointer="/activation_checkpoint/memory_budget",
            detail=f"memory_budget={section.memory_budget:g} does nothing with "
            f"mode={section.mode!r}",
        )


Rule = Callable[[JobSpec], Iterator[Problem]]
REFUSED: tuple[Rule, ...] = (overlap, decay, exclusions)
"""No layout and no later change of a resume would make use of it."""
SAID: tuple[Rule, ...] = (*REFUSED, pipeline, budget)
"""The plan of a job warns of all."""
