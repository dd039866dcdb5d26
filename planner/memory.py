"""A first model of device memory: bytes of each part at the fullest moment of a step.

It knows Llama-style blocks with bfloat16 or float32 compute under FSDP2, tensor parallelism and
context parallelism; docs/planner.md compares it with published and measured peaks. It knows neither
pipeline stages, nor quantized products, nor what torch.compile saves; the device's own context and
the buffers of the communication library count nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.activations import (
    BYTES,
    activations_of_a_block,
    activations_of_the_head,
    kept_of_a_block,
)
from planner.parameters import count_parameters
from specs.batch import BatchDeal
from specs.job import JobSpec
from specs.layout import Layout
from specs.plan import MemoryEstimate, ParameterCount

LOSS_BYTES = 12
"""For each logit: its log-softmax, kept for backward, the gradient of the loss by that, and the
gradient by the logit, float32 each. The logits themselves live as long."""

SLACK = 0.15
"""Reserved beyond allocated, as a share of the short-lived parts: rounding and fragmentation of the
caching allocator. Fitted to the published peaks of docs/planner.md."""


def estimate_memory(spec: JobSpec, layout: Layout, deal: BatchDeal) -> MemoryEstimate:
    """Return what the fullest rank holds, in bytes, at the moment when it holds most.

    Args:
        spec: gives shape, types and what backward recomputes.
        layout: the parallel axes, without pipeline stages.
        deal: gives the micro-batch, and whether a rank runs more than one: from the second on, the
            sum of the earlier ones' gradients stands beside the activations. They are summed over
            the ranks once a step, so until then each rank has them whole.
    """
    assert layout.pp == 1, "no engine runs pipeline stages yet, and no measurement is at hand"
    step = _Step(spec, layout, deal)
    shard = -(-step.parameters.total // (layout.dp_shard * layout.cp * layout.tp))
    gradients = shard * BYTES["float32"]
    moments = (step.at_loss(), step.at_head(), step.at_block(), step.at_embedding(gradients))
    peak = max(moments, key=lambda moment: moment.total)
    weights = shard * BYTES["float32"]
    optimizer_states = 2 * shard * BYTES[spec.optimizer.state_dtype]
    return MemoryEstimate(
        peak_at=peak.name,
        weights=weights,
        gradients=peak.gradients,
        optimizer_states=optimizer_states,
        gathered=peak.gathered,
        activations=peak.activations,
        logits=peak.logits,
        slack=peak.slack,
        total=weights + optimizer_states + peak.total,
    )


@dataclass(frozen=True)
class _Moment:
    """What a rank holds at one moment of a step, beside its weights and optimizer states."""

    name: Literal["loss", "head", "block", "embedding"]
    gradients: int
    gathered: int
    activations: int = 0
    logits: int = 0

    @property
    def slack(self) -> int:
        return round(SLACK * (self.gathered + self.activations + self.logits))

    @property
    def total(self) -> int:
        return self.gradients + self.gathered + self.activations + self.logits + self.slack


class _Step:
    """The moments of a step that can be the fullest, in their order, each in backward.

    The update that follows needs less: it works in place.
    """

    def __init__(self, spec: JobSpec, layout: Layout, deal: BatchDeal) -> None:
        self.spec, self.layout = spec, layout
        self.shape = a = spec.architecture
        self.parameters: ParameterCount = count_parameters(a)
        self.compute = BYTES[spec.training.param_dtype]
        # One float32 rank is not sharded: it gathers no weights, and sums its gradients in place.
        self.sharded = layout.world_size > 1 or spec.training.param_dtype != "float32"
        self.reduce = BYTES[spec.training.reduce_dtype] if self.sharded else 0
        sequences = min(deal.micro_batch_size, deal.global_batch_size)
        self.tokens = -(-sequences * spec.training.seq_len // layout.cp)
        self.several_rounds = deal.rounds > 1
        # Gradients of earlier micro-batches, whole, in the type in which they will be summed.
        self.earlier = 0
        if self.several_rounds:
            self.earlier = self.parameters.total * (self.reduce or self.compute) // layout.tp
        self.block = sum(
            (self.parameters.attention, self.parameters.feed_forward, self.parameters.norms)
        )
        self.head = a.vocab_size * a.dim  # and as many in the embedding
        self.kept = a.n_layers * kept_of_a_block(spec, layout, tokens=self.tokens)

    def at_loss(self) -> _Moment:
        """All blocks have run; head and final norm stay gathered from forward to backward."""
        head_activations = activations_of_the_head(self.spec, tokens=self.tokens)
        return self._moment(
            "loss",
            gathered=self._weights(self.head + self.parameters.final_norm),
            activations=self.kept + head_activations,
            logits=LOSS_BYTES + self.compute,
        )

    def at_head(self) -> _Moment:
        """The head's gradient is there whole, and again in the type in which it is summed."""
        summed = 0 if self.shape.tied_embeddings else self.reduce
        return self._moment(
            "head",
            gathered=self._weights(self.head) + self.head * (self.compute + summed),
            activations=self.kept,
            logits=self.compute,
        )

    def at_block(self) -> _Moment:
        """The last block is run again where asked for, and differentiated.

        Whole at once: its weights and the next one's, the gradient of one block being computed and
        that of another being summed. Gradients of the four feed-forward activations stand beside
        the activations themselves.
        """
        activations = 4 * self.tokens * self.shape.ffn_dim * self.compute // self.layout.tp
        if self.spec.activation_checkpoint.mode != "none":
            activations += activations_of_a_block(self.spec, self.layout, tokens=self.tokens)
        gradients = self.block * (self.compute + self.reduce)
        return self._moment(
            "block",
            gathered=self._weights(min(2, self.shape.n_layers) * self.block) + gradients,
            activations=self.kept + activations,
        )

    def at_embedding(self, gradients: int) -> _Moment:
        """All other gradients are there, the embedding's is whole and about to be summed.

        A tied embedding is still gathered, and has three: the head's, its own, and their sum. On a
        single rank the last of them is the shard itself.
        """
        tied = self.shape.tied_embeddings
        whole = self._weights(self.head) if tied else 0
        copies = (3 if tied else 1) - (0 if self.sharded else 1)
        whole += copies * self.head * self.compute
        if not tied and not self.several_rounds:
            whole += self.head * self.reduce
        return _Moment(
            "embedding",
            gradients=max(gradients, self.earlier),
            gathered=whole // self.layout.tp,
        )

    def _weights(self, gathered: int) -> int:
        """Return the bytes of so many gathered weights, or of all where none are freed."""
        if not self.sharded:
            return 0
        never = self.spec.parallelism.reshard_after_forward == "never"
        return (self.parameters.total if never else gathered) * self.compute

    def _moment(
        self,
        name: Literal["loss", "head", "block"],
        *,
        gathered: int,
        activations: int,
        logits: int = 0,
    ) -> _Moment:
        """Return a moment; `gathered` is undivided, and `logits` are bytes for each of them."""
        tp = self.layout.tp
        vocabulary = self.shape.vocab_size
        if self.spec.parallelism.loss_parallel:
            vocabulary //= tp
        return _Moment(
            name,
            gradients=self.earlier,
            gathered=gathered // tp,
            activations=activations,
            logits=logits * self.tokens * vocabulary,
        )
