"""Cost of a pipeline: its stages, its micro-batches, and the time for which ranks wait."""

from __future__ import annotations

from bisect import bisect_right

from trainyard.axes.pp import microbatches_of, stages_of
from trainyard.planner.memory import estimate_memory
from trainyard.planner.results import PipelinePlan
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.training.batch_partition import BatchPartition
from trainyard.training.pipeline_schedule import bubble_share, runs_of


def plan_pipeline(spec: JobSpec, layout: Layout, partition: BatchPartition) -> PipelinePlan | None:
    """Return the pipeline of a layout; None without pipeline parallelism.

    Raises:
        SpecError: the pipeline cannot divide the model, or the batch into micro-batches.
    """
    if layout.pp == 1:
        return None
    stages = stages_of(spec.facts(layout))
    microbatches = microbatches_of(spec.facts(layout))
    runs = runs_of(partition.rounds, microbatches)
    schedule = spec.parallelism.pp_schedule
    return PipelinePlan(
        schedule=schedule,
        layers=tuple(stage.layers for stage in stages),
        microbatches=microbatches,
        runs=runs,
        empty=runs * microbatches - partition.rounds,
        bubble_share=bubble_share(
            schedule,
            pp=layout.pp,
            stages_per_rank=len(stages) // layout.pp,
            microbatches=microbatches,
        ),
    )


def microbatches_that_fit(
    spec: JobSpec, layout: Layout, partition: BatchPartition, *, available: int
) -> int | None:
    """Return the largest `pp_microbatches` with which a GPipe step fits into the given memory.

    If smaller values give the same number of runs, the smallest of them is returned, so that the
    fewest micro-batches are empty. Return None if memory does not depend on the value, or if not
    even one micro-batch fits.
    """
    if layout.pp == 1 or spec.parallelism.pp_schedule != "GPipe":
        return None

    def needs(microbatches: int) -> int:
        section = spec.parallelism.model_copy(update={"pp_microbatches": microbatches})
        smaller = spec.model_copy(update={"parallelism": section})
        return estimate_memory(smaller, layout, partition).total

    most = bisect_right(range(1, partition.rounds + 1), available, key=needs)
    return -(-partition.rounds // runs_of(partition.rounds, most)) if most else None
