"""Rules across the fields of `optimizer`, `training`, `lr_schedule` and `validation`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trainyard.base.problems import Problem
from trainyard.spec.job import JobSpec
from trainyard.spec.sections.training import LrScheduleSection, OptimizerSection

STANDSTILL = 2.0**-8
"""Minimum relative change of a number that survives rounding to bfloat16: half a unit in the last
place."""


def weight_decay(spec: JobSpec) -> Iterator[Problem]:
    """A `weight_decay` other than 0 and the default is illegal with Adam, which would ignore it."""
    section = spec.optimizer
    default = OptimizerSection().weight_decay
    if section.name == "adam" and section.weight_decay not in (0.0, default):
        yield Problem(
            pointer="/optimizer/weight_decay",
            detail=f"weight_decay={section.weight_decay:g}, but adam has none; "
            "legal: 0, or name='adamw'",
        )


def moments(spec: JobSpec) -> Iterator[Problem]:
    """With moments in bfloat16, a beta must be so small that the decay of one step survives
    rounding."""
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


def weights(spec: JobSpec) -> Iterator[Problem]:
    """Weights in bfloat16 need computation and moments in bfloat16."""
    if spec.training.weight_dtype != "bfloat16":
        return
    types = {
        "/training/param_dtype": spec.training.param_dtype,
        "/optimizer/state_dtype": spec.optimizer.state_dtype,
    }
    for pointer, dtype in types.items():
        if dtype != "bfloat16":
            name = pointer.rpartition("/")[2]
            yield Problem(
                pointer=pointer,
                detail=f"{name}={dtype!r} is wider than training.weight_dtype='bfloat16'; "
                "legal: bfloat16, or weight_dtype='float32'",
            )


def schedule(spec: JobSpec) -> Iterator[Problem]:
    """Each length of the schedule is given in either steps or tokens, and is at most the total
    length."""
    section, total = spec.lr_schedule, spec.schedule_tokens
    tokens = {"warmup": spec.schedule.warmup_tokens, "decay": spec.schedule.decay_tokens}
    for part in ("warmup", "decay", "total"):
        steps, given = getattr(section, f"{part}_steps"), getattr(section, f"{part}_tokens")
        if given is not None and steps != getattr(LrScheduleSection(), f"{part}_steps"):
            yield Problem(
                pointer=f"/lr_schedule/{part}_tokens",
                detail=f"{part}_tokens={given} and {part}_steps={steps} both give this length; "
                "legal: one of them",
            )
        elif tokens.get(part, 0) > total:
            unit, value = ("steps", steps) if given is None else ("tokens", given)
            end = f"{spec.schedule_steps} steps" if given is None else f"{total} tokens"
            most = total // spec.tokens_per_step if given is None else total
            yield Problem(
                pointer=f"/lr_schedule/{part}_{unit}",
                detail=f"{part}_{unit}={value} is beyond the schedule's {end}; legal: up to {most}",
            )


def validation(spec: JobSpec) -> Iterator[Problem]:
    """Validation needs a held-out part of the data."""
    interval = spec.validation.interval_steps
    if interval and not spec.data.validation_fraction:
        yield Problem(
            pointer="/data/validation_fraction",
            detail=f"validation_fraction=0 holds nothing out, but validation.interval_steps="
            f"{interval} requires validation; legal: above 0 and below 1, such as 0.01",
        )


LEARNING: tuple[Callable[[JobSpec], Iterator[Problem]], ...] = (
    weight_decay,
    moments,
    weights,
    schedule,
    validation,
)
