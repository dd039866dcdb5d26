"""What a pipeline costs: its stages, its micro-batches and the time in which ranks wait."""

from __future__ import annotations

from specs.batch import BatchDeal
from specs.job import JobSpec
from specs.layout import Layout
from specs.pipeline import bubble_share, microbatches_of, stages_of
from specs.plan import PipelinePlan


def plan_pipeline(spec: JobSpec, layout: Layout, deal: BatchDeal) -> PipelinePlan | None:
    """Return the pipeline of a layout; None where it has none.

    Raises:
        SpecError: the model or the batch cannot be cut so.
    """
    if layout.pp == 1:
        return None
    stages = stages_of(spec, layout)
    microbatches = microbatches_of(spec, layout)
    schedule = spec.parallelism.pp_schedule
    return PipelinePlan(
        schedule=schedule,
        layers=tuple(stage.layers for stage in stages),
        microbatches=microbatches,
        runs=deal.rounds // microbatches,
        bubble_share=bubble_share(
            schedule,
            pp=layout.pp,
            stages_per_rank=len(stages) // layout.pp,
            microbatches=microbatches,
        ),
    )
