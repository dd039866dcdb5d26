"""Rules for forks (new jobs from a checkpoint): which aspects of training continue exactly."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Literal

from trainyard.base.model_base import RecordModel
from trainyard.base.problems import Problem, SpecError
from trainyard.protocol.resume_parts import ALL_PARTS, WITHOUT, CheckpointPart
from trainyard.protocol.resume_rules import Difference, differences, keeps_order
from trainyard.spec.job import JobSpec


class Guarantee(RecordModel):
    """Whether one aspect of a fork continues exactly."""

    name: Literal["weights", "optimizer", "counters", "data order", "global batch", "curve"]
    """Name of the aspect."""
    holds: bool
    """Whether the aspect continues exactly."""
    detail: str
    """Sentence that explains how the aspect continues, or why it does not continue and what happens
    instead."""


def settle_parts(
    before: JobSpec, after: JobSpec, requested: tuple[CheckpointPart, ...] | None
) -> tuple[CheckpointPart, ...]:
    """Return the parts that a fork loads; by default all parts that can continue.

    Raises:
        SpecError: the model's shape or a dtype differs, or a requested part cannot continue.
    """
    different = differences(before, after)
    problems = list(_other_shape(before, after, different))
    parts = requested or ALL_PARTS
    moved = [str(found) for found in different if not keeps_order(found.field)]
    if moved and CheckpointPart.DATA in parts:
        if requested is None:
            parts = tuple(part for part in parts if part != CheckpointPart.DATA)
        else:
            detail = f"the data cannot continue at its position, because {', '.join(moved)}"
            problems.append(Problem(pointer="/parts", detail=f"{detail}; leave data out"))
    old, new = before.training.weight_dtype, after.training.weight_dtype
    if old != new:
        detail = f"the checkpoint's weights are {old}, not {new}; legal: {old}"
        problems.append(Problem(pointer="/changes/training/weight_dtype", detail=detail))
    old, new = before.optimizer.state_dtype, after.optimizer.state_dtype
    if CheckpointPart.OPTIMIZER in parts and old != new:
        detail = f"the checkpoint's moments are {old}, not {new}; leave optimizer out of parts"
        problems.append(Problem(pointer="/changes/optimizer/state_dtype", detail=detail))
    if problems:
        raise SpecError(problems)
    return parts


def guarantees(
    before: JobSpec,
    after: JobSpec,
    *,
    step: int,
    position: int,
    parts: Collection[CheckpointPart],
) -> tuple[Guarantee, ...]:
    """Return the guarantees of a fork: whether each aspect continues exactly.

    Args:
        before: the job that wrote the checkpoint.
        after: the new job.
        step: completed steps of the checkpoint.
        position: position of the checkpoint in the data.
        parts: the parts to load.
    """
    taken, different = set(parts), differences(before, after)
    return (
        Guarantee(name="weights", holds=True, detail=f"those of step {step}, bit for bit"),
        _part("optimizer", taken, f"moments and counters of step {step}, bit for bit"),
        _part("counters", taken, f"continue after step {step}"),
        _data(taken, different, position),
        _batch(different),
        _curve(taken, different),
    )


def departures(
    before: JobSpec, after: JobSpec, parts: Collection[CheckpointPart]
) -> tuple[str, ...]:
    """Return the reasons why a fork's curve differs from the curve of the checkpoint's job.

    Args:
        before: the job that wrote the checkpoint.
        after: the fork.
        parts: the parts that the fork loads.
    """
    return _departures(set(parts), differences(before, after))


def same_steps(before: JobSpec, after: JobSpec, parts: Collection[CheckpointPart]) -> bool:
    """Return whether each step of a fork holds the same sequences as the same step of the
    checkpoint's job."""
    changed = {found.field for found in differences(before, after)}
    batch = "training.global_batch_size" in changed
    return CheckpointPart.DATA in parts and not batch and all(map(keeps_order, changed))


def _other_shape(
    before: JobSpec, after: JobSpec, different: Collection[Difference]
) -> Iterator[Problem]:
    if _shape(before) == _shape(after):
        return
    of_shape = {"training.seq_len"} if after.model.factory is not None else set()
    for found in different:
        if found.field.startswith("model.") or found.field in of_shape:
            yield Problem(
                pointer=f"/changes/{found.field.replace('.', '/')}",
                detail=f"{found.after!r}, but the checkpoint's model has {found.before!r}: a fork "
                "needs a model of the same shape",
            )


def _shape(spec: JobSpec) -> object:
    """Return the settings that determine names and shapes of the weights."""
    if spec.model.hugging_face is not None:
        return spec.model.hugging_face
    if spec.model.factory is not None:
        return spec.model.factory, spec.model.code, spec.model.arguments, spec.training.seq_len
    arch = spec.architecture
    # Fields that leave the shapes of the weights unchanged may differ.
    return spec.model.family, dataclasses.replace(
        arch, own_head_dim=arch.head_dim, rope_theta=1.0, norm_eps=1.0, rope_scaling=None
    )


def _part(
    name: Literal["optimizer", "counters"], taken: Collection[CheckpointPart], exact: str
) -> Guarantee:
    part = CheckpointPart(name)
    holds = part in taken
    return Guarantee(name=name, holds=holds, detail=exact if holds else WITHOUT[part])


def _data(
    taken: Collection[CheckpointPart], different: Collection[Difference], position: int
) -> Guarantee:
    holds = CheckpointPart.DATA in taken
    moved = [str(found) for found in different if not keeps_order(found.field)]
    why = f"other data or another order ({', '.join(moved)})" if moved else "data is left out"
    detail = (
        f"continues at position {position}, with the same sequences in the same order"
        if holds
        else f"{why}: starts at position 0 of this job's data"
    )
    return Guarantee(name="data order", holds=holds, detail=detail)


def _batch(different: Collection[Difference]) -> Guarantee:
    other = [str(d) for d in different if d.field == "training.global_batch_size"]
    detail = f"steps hold other sequences ({other[0]})" if other else "same number in each step"
    return Guarantee(name="global batch", holds=not other, detail=detail)


def _curve(taken: Collection[CheckpointPart], different: Collection[Difference]) -> Guarantee:
    reasons = _departures(taken, different)
    detail = (
        f"differs from the other job's curve: {'; '.join(reasons)}"
        if reasons
        else "continues the other job's curve, on any layout"
    )
    return Guarantee(name="curve", holds=not reasons, detail=detail)


def _departures(
    taken: Collection[CheckpointPart], different: Collection[Difference]
) -> tuple[str, ...]:
    left_out = (f"{part} left out" for part in CheckpointPart if part not in taken)
    return (*left_out, *map(str, different))
