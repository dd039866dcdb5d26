"""Pipeline parallelism: stages of layers, and micro-batches per run of the schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from trainyard.axes.base import (
    Axis,
    AxisFields,
    LayoutFacts,
    Sizes,
    Traffic,
    TrafficFacts,
    lacks_plan,
    problem,
)
from trainyard.base.model_base import Ranks
from trainyard.base.problems import Problem, SpecError, nearest
from trainyard.training.pipeline_schedule import (
    SPLIT_BACKWARD,
    PipelineSchedule,
    can_run,
    least_microbatches,
    next_runnable,
    quickest,
)
from trainyard.training.pipeline_stages import Stage, cut_into_stages


class PipelineParallelFields(AxisFields):
    """Fields of pipeline parallelism."""

    pp: Ranks = 1
    """Pipeline parallelism: number of ranks over which the layers are divided into stages."""
    pp_schedule: PipelineSchedule = "1F1B"
    """Schedule of the pipeline."""
    pp_microbatches: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Number of micro-batches in one run of the pipeline; if absent, the number with the shortest
    step time."""
    pp_layers_per_stage: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Number of layers per pipeline stage; if absent, stages are balanced."""
    pp_stage_modules: Annotated[tuple[tuple[str, ...], ...], Field(strict=False)] = ()
    """Names of the modules in each pipeline stage; if empty, stages are balanced."""


def stages_of(facts: LayoutFacts) -> tuple[Stage, ...]:
    """Return the stages of a job in model order; one stage without pipeline parallelism.

    Raises:
        SpecError: the model cannot be divided like this; the error gives the nearest legal values.
    """
    options = facts.options(PipelineParallelFields)
    return cut_into_stages(
        facts.architecture,
        pp=facts.size("pp"),
        seq_len=facts.seq_len,
        schedule=options.pp_schedule,
        modules=options.pp_stage_modules,
        layers_per_stage=options.pp_layers_per_stage,
    )


def microbatches_of(facts: LayoutFacts) -> int:
    """Return m, the number of micro-batches in one run of the schedule.

    A step has as many runs as its micro-batches need; empty micro-batches fill the last run. If
    `pp_microbatches` is absent, m minimizes the step time, including the computation of empty
    micro-batches. m only depends on spec and layout, so it is the same on every device.

    Raises:
        SpecError: the schedule cannot run m micro-batches. The error gives the field, its value and
            the nearest legal values.
    """
    options, pp = facts.options(PipelineParallelFields), facts.size("pp")
    schedule, given, rounds = options.pp_schedule, options.pp_microbatches, facts.batch.rounds
    if rounds < least_microbatches(schedule, pp=pp):
        raise SpecError([_too_few(facts)])
    if given is None:
        per_rank = len(stages_of(facts)) // pp
        return quickest(schedule, rounds, pp=pp, stages_per_rank=per_rank)
    most = next_runnable(schedule, rounds, pp=pp)
    if given > most or not can_run(schedule, given, pp=pp):
        legal = [m for m in range(1, most + 1) if can_run(schedule, m, pp=pp)]
        detail = (
            f"{schedule} on pp={pp} cannot run pp_microbatches={given} together: a "
            f"rank has {rounds} micro-batches in a step; {nearest(given, legal)}"
        )
        raise SpecError([problem("pp_microbatches", detail)])
    return given


def own_model(facts: LayoutFacts) -> Iterator[Problem]:
    """With pipeline parallelism, a user's own model needs a plan for its layers."""
    yield from lacks_plan(facts, "pp", plan="pipeline", what="the layers")


def pipeline_parallel(facts: LayoutFacts) -> Iterator[Problem]:
    """The schedule must be able to divide the model into stages, and a step into micro-batches.

    Tied embeddings are illegal. With a split backward pass, some other settings are illegal too.
    """
    pp = facts.size("pp")
    if pp > 1 and facts.architecture.tied_embeddings:
        yield problem(
            "pp",
            f"pp={pp}, but embedding and head of model.size={facts.size_name!r} are one "
            "weight, which one stage must hold; legal: pp=1",
        )
        return
    if pp > 1:
        yield from _split_backward(facts)
    try:
        stages_of(facts)
        if pp > 1:
            microbatches_of(facts)
    except SpecError as error:
        yield from error.problems


def _split_backward(facts: LayoutFacts) -> Iterator[Problem]:
    """With a split backward pass, blocks must compute input and weight gradients separately."""
    schedule = facts.options(PipelineParallelFields).pp_schedule
    if schedule not in SPLIT_BACKWARD:
        return
    unable = {
        "compile.enabled=false": ("compiled blocks", facts.compiles),
        "activation_checkpoint.mode='full' or 'none'": (
            "selective activation checkpointing",
            facts.recomputation == "selective",
        ),
    }
    for legal, (what, applies) in unable.items():
        if applies:
            yield problem(
                "pp_schedule",
                f"pp_schedule={schedule!r} computes gradients of inputs and "
                f"of weights apart, which {what} cannot; "
                f"legal: GPipe, 1F1B, Interleaved1F1B, or {legal}",
            )


def _too_few(facts: LayoutFacts) -> Problem:
    schedule = facts.options(PipelineParallelFields).pp_schedule
    pp, batch = facts.size("pp"), facts.batch
    least = least_microbatches(schedule, pp=pp)
    smaller = (batch.global_batch_size - 1) // (batch.dp * (least - 1))
    or_smaller = f", micro_batch_size up to {smaller}" if smaller else ""
    return problem(
        "pp",
        f"{schedule} on pp={pp} needs at least {least} micro-batches on "
        f"each rank, but dp={batch.dp} leaves {batch.rounds} of global_batch_size="
        f"{batch.global_batch_size} with micro_batch_size={batch.micro_batch_size}; "
        f"legal: pp up to {batch.rounds}{or_smaller}, or another pp_schedule",
    )


def sends_stream(facts: TrafficFacts) -> Traffic:
    """Return the traffic of a rank that is neither the first nor the last of the pipeline.

    Per micro-batch, each stage of the rank sends one activation and one gradient.
    """
    if facts.size("pp") == 1:
        return Traffic()
    sends = 2 * facts.stages * facts.micro_batches
    return Traffic(sends * facts.held_stream_bytes, sends)


def resets(before: Sizes, after: Sizes) -> dict[str, Any]:
    """Return default values for the stage options if the number of pipeline ranks changes."""
    if before["pp"] == after["pp"]:
        return {}
    return {"pp_stage_modules": (), "pp_layers_per_stage": None}


FIELDS = PipelineParallelFields
AXES = (
    Axis(
        name="pp",
        label="PP",
        order=50,
        # Outermost, because a stage sends one activation per micro-batch, the least of all axes.
        mesh_order=10,
        help="Pipeline parallel stages.",
        divides="layers",
        scope="batch",
        rules=(own_model, pipeline_parallel),
        traffic=sends_stream,
        resets=resets,
    ),
)
