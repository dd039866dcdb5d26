"""The part of the model on each pipeline rank, and its micro-batches in flight."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.axes.pp import microbatches_of, stages_of
from trainyard.planner.results import ParameterCount
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.training.pipeline_schedule import in_flight


@dataclass(frozen=True)
class Part:
    """The stages of one pipeline rank; the whole model without a pipeline."""

    layers: int
    """Transformer blocks."""
    embedding: bool
    """Whether it holds the token embedding."""
    head: bool
    """Whether it holds final norm and head, and computes the loss."""
    blocks_in_flight: float
    """Blocks that await backward, counted once for each micro-batch."""
    stages_in_flight: int
    """Stages that await backward, counted once for each micro-batch."""
    heads_in_flight: int
    """Heads that await backward, counted once for each micro-batch; their gradients, which the loss
    has computed, wait too."""

    def parameters(self, counted: ParameterCount) -> int:
        """Return its number of parameters."""
        first = counted.embedding if self.embedding else 0
        last = counted.final_norm + counted.head if self.head else 0
        return first + self.layers * counted.block + last


def parts_of(spec: JobSpec, layout: Layout) -> list[Part]:
    """Return the part of the model on each pipeline rank.

    Raises:
        SpecError: the model or the batch cannot be cut this way.
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

    With GPipe that is all of them; otherwise each runs backward immediately. The interleaved
    zero-bubble schedule defers the weight gradients of p - 1 micro-batches.
    """
    match spec.parallelism.pp_schedule:
        case "GPipe":
            return microbatches
        case "InterleavedZeroBubble":
            return min(microbatches, layout.pp)
        case _:
            return 1
