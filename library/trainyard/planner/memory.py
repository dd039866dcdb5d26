"""A first model of device memory: bytes of each part at the fullest moment of a step.

It knows Llama-style blocks with bfloat16 or float32 compute under FSDP2, tensor, context and
pipeline parallelism; docs/planner.md compares it with published and measured peaks. It does not
know what torch.compile saves; the device's own context and the buffers of the communication library
count nowhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trainyard.axes import AXES
from trainyard.planner.activations import (
    BYTES,
    activations_of_a_block,
    activations_of_the_head,
    kept_of_a_block,
    width_of_the_stream,
)
from trainyard.planner.parameters import count_parameters
from trainyard.planner.rank_contents import Part, parts_of
from trainyard.planner.results import MemoryEstimate, ParameterCount
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.precision import quantized_elements
from trainyard.training.batch_partition import BatchPartition
from trainyard.training.loss import tokens_per_chunk

SLACK = 0.15
"""Reserved beyond allocated, as a share of the short-lived parts: rounding and fragmentation of the
caching allocator. Fitted to the published peaks of docs/planner.md."""


def estimate_memory(spec: JobSpec, layout: Layout, partition: BatchPartition) -> MemoryEstimate:
    """Return what the fullest rank holds, in bytes, at the moment when it holds most.

    Args:
        spec: gives shape, types and what backward recomputes.
        layout: the parallel axes.
        partition: gives the micro-batch size and the number of rounds. From the second round on,
            a rank holds the accumulated gradients together with the activations.

    Raises:
        SpecError: the model or the batch cannot be cut into the stages of a pipeline.
    """
    parts = dict.fromkeys(parts_of(spec, layout))  # most ranks of a long pipeline are alike
    ranks = (Step(spec, layout, partition, part).estimate() for part in parts)
    return max(ranks, key=lambda estimate: estimate.total)


@dataclass(frozen=True)
class Moment:
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


class Step:
    """The moments of one rank's step that can be the fullest, in their order.

    The update that follows needs less: it works in place.
    """

    def __init__(
        self, spec: JobSpec, layout: Layout, partition: BatchPartition, part: Part
    ) -> None:
        self.spec, self.layout, self.part = spec, layout, part
        self.shape = a = spec.architecture
        self.parameters: ParameterCount = count_parameters(a)
        self.total = part.parameters(self.parameters)
        self.compute = BYTES[spec.training.param_dtype]
        self.weight = BYTES[spec.training.weight_dtype]
        # Else it gathers no weights, and sums its gradients in place.
        self.sharded = spec.is_sharded(layout)
        self.reduce = BYTES[spec.training.reduce_dtype] if self.sharded else 0
        sequences = min(partition.micro_batch_size, partition.global_batch_size)
        shared = math.prod(layout.size(axis.name) for axis in AXES if axis.divides == "tokens")
        self.tokens = -(-sequences * spec.training.seq_len // shared)
        sharded = math.prod(layout.size(axis.name) for axis in AXES if axis.shards_weights)
        self.shard = -(-self.total // sharded)
        # Offloaded, the shards are in the memory of the host.
        self.stored = 0 if spec.optimizer.cpu_offload else self.shard
        self.earlier = self._earlier_gradients() if partition.rounds > 1 else 0
        self.block = sum(
            (self.parameters.attention, self.parameters.feed_forward, self.parameters.norms)
        )
        self.head = a.vocab_size * a.dim  # and as many in the embedding
        # The vocabulary of which this rank computes the loss, and the tokens for which it does so
        # at once.
        self.rows = a.vocab_size // (layout.tp if spec.parallelism.loss_parallel else 1)
        self.chunk = min(self.tokens, tokens_per_chunk(self.rows))
        self.several_chunks = self.chunk < self.tokens
        self.kept = self._kept()

    def estimate(self) -> MemoryEstimate:
        """Return the fullest moment."""
        moments = [self.at_block()] if self.part.layers else []
        if self.part.head:
            moments += [self.at_loss(), self.at_head()]
        if self.part.embedding:
            moments.append(self.at_embedding())
        peak = max(moments, key=lambda moment: moment.total)
        weights = self.stored * self.weight
        optimizer_states = 2 * self.stored * BYTES[self.spec.optimizer.state_dtype]
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

    def at_loss(self) -> Moment:
        """A chunk's logits are there, and the gradient of the head's weight by earlier chunks.

        The loss computes gradients at once, so that no logits outlive their chunk: those by its
        input stand beside the input until backward. Head and final norm are gathered; the buffer in
        which the last block's weights arrived is freed at the next gathering only.
        """
        waiting = self.block * self.compute if self.sharded else 0
        if self.several_chunks:
            waiting += self._head_gradient() + self.head * self.compute  # the sum, and a summand
        return self.moment(
            "loss",
            gathered=self.weights(self.head + self.parameters.final_norm) + waiting,
            activations=self.kept + self._head_activations(),
            logits=self._logits(),
        )

    def at_head(self) -> Moment:
        """The gradient of the head's weight is scaled, then converted to be summed over ranks.

        The last block's weights are on their way meanwhile. Before the sum, which leaves a shard
        that may be converted once more, the head itself is freed; but a pipeline keeps it for the
        next micro-batch, and tied embeddings wait for the embedding's gradient.
        """
        computed, gathered = self._head_gradient(), self.weights(self.head + self.block)
        scaled = 2 * computed + (self.head * self.compute if self.several_chunks else 0)
        summed = self.head * self.compute
        if self.sharded and not self.shape.tied_embeddings:
            summed += self.head * self.reduce
            summed += self._shard_of_head(self.reduce + (self.weight if self._converts() else 0))
            summed -= self.head * self.compute if self.layout.pp == 1 else 0
        return self.moment(
            "head",
            gathered=gathered + max(scaled, summed),
            activations=self.kept + self.tokens * self.shape.dim * self.compute,
        )

    def at_block(self) -> Moment:
        """The last block is run again where asked for, and differentiated.

        Whole at once: its weights and the next one's, the gradient of one block being computed and
        that of another being summed. Gradients of the four feed-forward activations stand beside
        the activations themselves.
        """
        activations = 4 * self.tokens * self.shape.ffn_dim * self.compute // self.layout.tp
        if self.spec.activation_checkpoint.mode != "none":
            activations += activations_of_a_block(self.spec, self.layout, tokens=self.tokens)
        whole = self._gathered_blocks(min(2, self.part.layers))
        tied = self.head * self.compute if self.shape.tied_embeddings else 0
        return self.moment(
            "block",
            gathered=whole + self.block * (self.compute + self.reduce) + tied,
            activations=self.kept + activations,
        )

    def at_embedding(self) -> Moment:
        """All other gradients are there, the embedding's is whole and about to be summed.

        Backward has freed the weights, but for a pipeline's. A tied embedding is still gathered,
        and has three gradients: the head's, its own, and their sum. On a single rank the last of
        them is the shard itself.
        """
        tied = self.shape.tied_embeddings
        if self.layout.pp > 1:
            gathered = self.weights(0)
        else:
            gathered = self.head * self.compute if tied and self.sharded else 0
        copies = (3 if tied else 1) - (0 if self.sharded else 1)
        computed, summed = copies * self.head * self.compute, self.head * self.reduce
        if tied:
            gathered += computed
        elif self.earlier and self._sums_whole():
            gathered += max(computed, summed)  # added to the whole sum before that one travels
        else:
            gathered += computed + summed
            gathered += self._shard_of_head(self.reduce) if self._converts() else 0
        shards = 0 if self.spec.optimizer.cpu_offload else self.shard * self.weight
        return Moment(
            "embedding",
            gradients=max(shards, self.earlier),
            gathered=gathered // self.layout.tp,
        )

    def _shard_of_head(self, bytes_each: int) -> int:
        return self.head * bytes_each // (self.layout.dp_shard * self.layout.cp)

    def _converts(self) -> bool:
        """Return whether shards of gradients are kept in another type than they are summed in."""
        return self.sharded and self.reduce != self.weight

    def _earlier_gradients(self) -> int:
        """Return what earlier micro-batches left: shards, or sums that are still whole."""
        if self._sums_whole():
            return self.total * (self.reduce or self.compute) // self.layout.tp
        return self.stored * self.weight

    def _sums_whole(self) -> bool:
        """Return whether gradients are summed over micro-batches before they become shards."""
        return self._keeps_weights() or not self.sharded

    def _kept(self) -> int:
        """Return what blocks keep until backward, of all micro-batches in flight."""
        part = self.part
        kept = part.blocks_in_flight * kept_of_a_block(self.spec, self.layout, tokens=self.tokens)
        if self.layout.pp > 1:
            # What a stage gives to the next one stays until its gradient comes back.
            kept += (
                part.stages_in_flight * self.tokens * width_of_the_stream(self.spec, self.layout)
            )
        if part.heads_in_flight > 1:
            of_a_head = self._head_activations() + self._head_gradient() // self.layout.tp
            kept += (part.heads_in_flight - 1) * of_a_head
        return round(kept)

    def _head_activations(self) -> int:
        by_its_input = self.tokens * self.shape.dim * self.compute
        return activations_of_the_head(self.spec, tokens=self.tokens) + by_its_input

    def _head_gradient(self) -> int:
        """Return the bytes of the head's gradient, undivided; several chunks add up in float32."""
        return self.head * (BYTES["float32"] if self.several_chunks else self.compute)

    def _logits(self) -> int:
        """Return the bytes of a chunk's logits and of their log-softmax, float32 both.

        Of the chunk before, the gradient is still there, and again in the type of the product.
        """
        each = 2 * BYTES["float32"]
        if self.several_chunks:
            each += BYTES["float32"] + (self.compute if self.compute < BYTES["float32"] else 0)
        return each * self.chunk * self.rows

    def _gathered_blocks(self, blocks: int) -> int:
        """Return the bytes of so many gathered blocks; float8 matrices travel as float8."""
        gathered = self.weights(blocks * self.block)
        tensorwise = self.spec.quantization.recipe == "float8_tensorwise"
        if tensorwise and self.sharded and not self.spec.optimizer.cpu_offload:
            kept = self.part.layers if self._keeps_weights() else blocks
            gathered -= kept * quantized_elements(self.spec) * (self.compute - 1)
        return gathered

    def weights(self, gathered: int) -> int:
        """Return the bytes of so many gathered weights, or of all where none are freed."""
        if not self.sharded:
            return 0
        return (self.total if self._keeps_weights() else gathered) * self.compute

    def _keeps_weights(self) -> bool:
        """Return whether weights stay gathered from one use to the next."""
        # A pipeline goes from one micro-batch's backward to the next one's forward without freeing.
        return self.spec.parallelism.reshard_after_forward == "never" or self.layout.pp > 1

    def moment(
        self,
        name: Literal["loss", "head", "block"],
        *,
        gathered: int,
        activations: int,
        logits: int = 0,
    ) -> Moment:
        """Return a moment; `gathered` is undivided by tensor parallelism."""
        return Moment(
            name,
            gradients=self.earlier,
            gathered=gathered // self.layout.tp,
            activations=activations,
            logits=logits,
        )
