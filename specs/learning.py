"""What the sections `optimizer` and `lr_schedule` demand of their fields together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from specs.job import JobSpec
from specs.problems import Problem
from specs.sections.training import OptimizerSection

STANDSTILL = 2.0**-8
"""Half of the last place of bfloat16 as a share of the number: what is less is rounded away."""


def weight_decay(spec: JobSpec) -> Iterator[Problem]:
    """Adam has no decay of weights: one that is given would do nothing."""
    section = spec.optimizer
    default = OptimizerSection().weight_decay
    if section.name == "adam" and section.weight_decay not in (0.0, default):
        yield Problem(
            pointer="/optimizer/weight_decay",
            detail=f"weight_decay={section.weight_decay:g}, but adam has none; "
            "legal: 0, or name='adamw'",
        )


def moments(spec: JobSpec) -> Iterator[Problem]:
    """A moment in bfloat16 forgets only while a step's share of it survives rounding."""
    section = spec.optimizer
    if section.state_dtype != "bfloat16":
        return
    for name, beta in (("beta1", section.beta1), ("beta2", section.beta2)):
        if 1 - beta < STANDSTILL:
            yield Problem(
                pointer=f"/optimizer/{name}",
                detail=f"{name}={beta:g} takes away {1 - beta:.2g} of a moment in a step, which "
                "bfloat16 rounds away: it would never shrink; legal: up to 0.996, or "
                "state_dtype='float32'",
            )


def schedule(spec: JobSpec) -> Iterator[Problem]:
    """The parts of a schedule lie within it."""
    section, total = spec.lr_schedule, spec.schedule_steps
    if section.warmup_steps > total:
        yield Problem(
            pointer="/lr_schedule/warmup_steps",
            detail=f"warmup_steps={section.warmup_steps} is beyond the schedule's {total} steps",
        )
    if section.decay_steps is not None and section.decay_steps > total:
        yield Problem(
            pointer="/lr_schedule/decay_steps",
            detail=f"decay_steps={section.decay_steps} is beyond the schedule's {total} steps",
        )


LEARNING: tuple[Callable[[JobSpec], Iterator[Problem]], ...] = (weight_decay, moments, schedule)
