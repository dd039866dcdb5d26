"""Part of the model on each pipeline rank, and the micro-batches in flight on this rank."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.axes.pp import microbatches_of, stages_of
from trainyard.planner.results import ParameterCount
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.training.pipeline_schedule import in_flight


@dataclass(frozen=True)
class Part:
    """Part of the model on one pipeline rank; without a pipeline, the whole model."""

    layers: int
    """Number of transformer blocks."""
    embedding: bool
    """Whether the rank holds the token embedding."""
    head: bool
    """Whether the rank holds the final norm and the head, and computes the loss."""
    blocks_in_flight: float
    """Number of blocks that await their backward pass, counted once per micro-batch."""
    stages_in_flight: int
    """Number of stages that await their backward pass, counted once per micro-batch."""
    heads_in_flight: int
    """Number of heads that await their backward pass, counted once per micro-batch. The loss has
    already computed their gradients, which are kept until then."""

    def parameters(self, counted: ParameterCount) -> int:
        """Return the number of parameters in this part."""
        first = counted.embedding if self.embedding else 0
        last = counted.final_norm + counted.head if self.head else 0
        return first + self.layers * counted.block + last


def parts_of(spec: JobSpec, layout: Layout) -> list[Part]:
    """Return the part of the model on each pipeline rank.

    Raises:
        SpecError: the pipeline cannot divide the model, or the batch into micro-batches.
    """
    if layout.pp == 1:
        layers = spec.architecture.n_layers
        return [Part(layers, True, True, layers, 1, 1)]
    stages = stages_of(spec.facts(layout))
    microbatches = microbatches_of(spec.facts(layout))
    schedule, per_rank = spec.parallelism.pp_schedule, len(stages) // layout.pp
    parts = []
    for rank in range(layout.pp):
        own = [stage for stage in stages if stage.rank == rank]
        layers = sum(stage.layers for stage in own)
        waiting = in_flight(
            schedule,
            pp=layout.pp,
            stages_per_rank=per_rank,
            microbatches=microbatches,
            rank=rank,
        )
        last = own[-1].index == len(stages) - 1
        parts.append(
            Part(
                layers=layers,
                embedding=own[0].index == 0,
                head=last,
                blocks_in_flight=waiting * layers / per_rank,
                stages_in_flight=waiting,
                heads_in_flight=_heads(spec, layout, microbatches) if last else 0,
            )
        )
    return parts


def _heads(spec: JobSpec, layout: Layout, microbatches: int) -> int:
    """Return the number of micro-batches between forward and backward of the head.

    With GPipe, these are all micro-batches. With other schedules, backward follows immediately,
    but the interleaved zero-bubble schedule defers the weight gradients of p - 1 micro-batches.
    """
    match spec.parallelism.pp_schedule:
        case "GPipe":
            return microbatches
        case "InterleavedZeroBubble":
            return min(microbatches, layout.pp)
        case _:
            return 1
