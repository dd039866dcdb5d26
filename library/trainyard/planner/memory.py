"""A model of device memory: bytes of each part at the peak of a step.

The model covers Llama-style blocks with bfloat16 or float32 computation, under FSDP2 and tensor,
context and pipeline parallelism. docs/planner.md compares the model with published and measured
peaks. The model omits the device's own context, and the buffers of the communication library.
"""

from __future__ import annotations

import math
from typing import Literal

from trainyard.axes import AXES
from trainyard.planner.activations import (
    BYTES,
    activations_of_the_head,
    kept_of_a_block,
    saved_of_a_block,
    width_of_the_feed_forward,
    width_of_the_stream,
)
from trainyard.planner.parameters import count_parameters
from trainyard.planner.rank_contents import Part, parts_of
from trainyard.planner.results import MemoryEstimate, ParameterCount
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.precision import gathered_in_float8
from trainyard.training.batch_partition import BatchPartition
from trainyard.training.logit_chunks import tokens_per_chunk
from trainyard.training.pipeline_schedule import SPLIT_BACKWARD

SLACK = 0.15
"""Memory that the caching allocator reserves but does not use, because of rounding and
fragmentation, as a share of the short-lived parts. The value is fitted to the published peaks in
docs/planner.md."""


def estimate_memory(spec: JobSpec, layout: Layout, partition: BatchPartition) -> MemoryEstimate:
    """Return the memory of the fullest rank at its peak, in bytes.

    Args:
        spec: shape, dtypes and recomputation.
        layout: the parallel axes.
        partition: micro-batch size and number of rounds. From the second round on, a rank holds
            accumulated gradients in addition to activations.

    Raises:
        SpecError: the pipeline cannot divide the model, or the batch into micro-batches.
    """
    parts = dict.fromkeys(parts_of(spec, layout))  # most ranks of a long pipeline hold equal parts
    ranks = (Step(spec, layout, partition=partition, part=part).estimate() for part in parts)
    return max(ranks, key=lambda estimate: estimate.total)


class Step:
    """The moments of a step at which a rank's memory can peak, in order of time.

    The optimizer update works in place and needs less memory.
    """

    def __init__(
        self, spec: JobSpec, layout: Layout, *, partition: BatchPartition, part: Part
    ) -> None:
        self.spec, self.layout, self.part = spec, layout, part
        # total, shard, block and head are numbers of elements; compute, weight and reduce are bytes
        # per element.
        self.shape = a = spec.architecture
        self.parameters: ParameterCount = count_parameters(a)
        self.total = part.parameters(self.parameters)
        self.compute = BYTES[spec.training.param_dtype]
        self.weight = BYTES[spec.training.weight_dtype]
        # Without FSDP a rank gathers no weights, and gradients are summed in place.
        self.sharded = spec.is_sharded(layout)
        self.reduce = BYTES[spec.training.reduce_dtype] if self.sharded else 0
        sequences = min(partition.micro_batch_size, partition.global_batch_size)
        shared = math.prod(layout.size(axis.name) for axis in AXES if axis.divides == "tokens")
        self.tokens = -(-sequences * spec.training.seq_len // shared)
        sharded = math.prod(layout.size(axis.name) for axis in AXES if axis.shards_weights)
        self.shard = -(-self.total // sharded)
        # With offloading, the shards are in host memory.
        self.stored = 0 if spec.optimizer.cpu_offload else self.shard
        self.earlier = self._earlier_gradients() if partition.rounds > 1 else 0
        self.block = self.parameters.block
        self.head = a.vocab_size * a.dim  # the embedding has as many elements
        # Rows of the vocabulary in this rank's loss, and number of tokens in one chunk of the loss.
        self.rows = a.vocab_size // (layout.tp if spec.parallelism.loss_parallel else 1)
        self.fused = spec.resources.device != "cpu"
        self.chunk = min(self.tokens, tokens_per_chunk(self.rows, fused=self.fused))
        self.several_chunks = self.chunk < self.tokens
        self.kept = self._kept()

    def estimate(self) -> MemoryEstimate:
        """Return the memory at the moment that needs most of it."""
        moments = [self.at_block()] if self.part.layers else []
        if self.part.head:
            moments += [self.at_loss(), self.at_head()]
        if self.part.embedding:
            moments.append(self.at_embedding())
        return max(moments, key=lambda moment: moment.total)

    def at_loss(self) -> MemoryEstimate:
        """Return the memory during the loss: logits of a chunk, and the head's gradient so far.

        The loss computes gradients immediately, so no logits outlive their chunk. The input of the
        loss and the gradient of this input are kept until backward. The head and the final norm are
        gathered. The buffer with the gathered weights of the last block is only freed at the next
        all-gather.
        """
        waiting = self.block * self.compute if self.sharded else 0
        if self.several_chunks:
            waiting += self._head_gradient() + self.head * self.compute  # the sum and the next term
        return self.moment(
            "loss",
            gathered=self.weights(self.head + self.parameters.final_norm) + waiting,
            activations=self.kept + self._head_activations(),
            logits=self._logits(),
        )

    def at_head(self) -> MemoryEstimate:
        """Return the memory when the head's weight gradient is converted for the sum over ranks.

        A schedule with two backward passes first scales the gradient into a second tensor.
        Meanwhile the weights of the last block are gathered. The head itself is freed before the
        sum, and the resulting shard may be converted again. There are two exceptions: a pipeline
        keeps the head for the next micro-batch, and tied embeddings keep the head until the
        embedding's gradient is computed.
        """
        computed, gathered = self._head_gradient(), self.weights(self.head + self.block)
        twice = self.layout.pp > 1 and self.spec.parallelism.pp_schedule in SPLIT_BACKWARD
        scaled = (2 if twice else 1) * computed
        scaled += self.head * self.compute if self.several_chunks else 0
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

    def at_block(self) -> MemoryEstimate:
        """Return the memory in the backward pass of the last block, after any recomputation.

        At this moment four parts are unsharded: the weights of this block and of the next, the
        gradient of this block, and the gradient of another block that is being summed over ranks.
        The gradients of the four feed-forward activations exist in addition to the activations.
        """
        width = width_of_the_feed_forward(self.spec)
        activations = 4 * self.tokens * width * self.compute // self.layout.tp
        if self.spec.activation_checkpoint.mode != "none":
            activations += saved_of_a_block(self.spec, self.layout, tokens=self.tokens)
        whole = self._gathered_blocks(min(2, self.part.layers))
        tied = self.head * self.compute if self.shape.tied_embeddings else 0
        return self.moment(
            "block",
            gathered=whole + self.block * (self.compute + self.reduce) + tied,
            activations=self.kept + activations,
        )

    def at_embedding(self) -> MemoryEstimate:
        """Return the memory with the embedding's unsharded gradient, before its sum over ranks.

        All other gradients are sharded. Backward has freed the weights, except in a pipeline. A
        tied embedding is still gathered and has three gradients: from the head, from the
        embedding, and their sum. On a single rank the sum is the shard itself.
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
            gathered += max(
                computed, summed
            )  # added to the unsharded sum before the reduce-scatter
        else:
            gathered += computed + summed
            gathered += self._shard_of_head(self.reduce) if self._converts() else 0
        shards = 0 if self.spec.optimizer.cpu_offload else self.shard * self.weight
        return self.moment("embedding", gradients=max(shards, self.earlier), gathered=gathered)

    def _shard_of_head(self, bytes_each: int) -> int:
        return self.head * bytes_each // (self.layout.dp_shard * self.layout.cp)

    def _converts(self) -> bool:
        """Return whether gradient shards are stored in another dtype than the dtype of the sum over
        ranks."""
        return self.sharded and self.reduce != self.weight

    def _earlier_gradients(self) -> int:
        """Return the bytes of earlier micro-batches' gradients, as shards or unsharded sums."""
        if self._sums_whole():
            return self.total * (self.reduce or self.compute) // self.layout.tp
        return self.stored * self.weight

    def _sums_whole(self) -> bool:
        """Return whether gradients are summed over micro-batches before they are sharded."""
        return self._keeps_weights() or not self.sharded

    def _kept(self) -> int:
        """Return the bytes that blocks keep until their backward pass, for all micro-batches."""
        part = self.part
        kept = part.blocks_in_flight * kept_of_a_block(self.spec, self.layout, tokens=self.tokens)
        if self.layout.pp > 1:
            # A stage keeps its output until the next stage returns the gradient of this output.
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
        """Return the bytes of the head's unsharded gradient; gradients of several chunks are summed
        in float32."""
        return self.head * (BYTES["float32"] if self.several_chunks else self.compute)

    def _logits(self) -> int:
        """Return the bytes of a chunk's logits, and of values that the loss computes from them.

        GPU kernels overwrite the logits by their gradient. The plain loss computes a log-softmax in
        float32; if the logits have another dtype, it first copies them to float32.
        """
        if self.fused:
            return self.compute * self.chunk * self.rows
        each = 2 * BYTES["float32"] + (self.compute if self.compute < BYTES["float32"] else 0)
        return each * self.chunk * self.rows

    def _gathered_blocks(self, blocks: int) -> int:
        """Return the bytes of gathered blocks; some matrices are gathered in float8."""
        gathered = self.weights(blocks * self.block)
        kept = self.part.layers if self._keeps_weights() else blocks
        return gathered - kept * gathered_in_float8(self.spec, self.layout) * (self.compute - 1)

    def weights(self, gathered: int) -> int:
        """Return the bytes of `gathered` weights, or of all if none are freed; 0 without FSDP."""
        if not self.sharded:
            return 0
        return (self.total if self._keeps_weights() else gathered) * self.compute

    def _keeps_weights(self) -> bool:
        """Return whether weights stay gathered from one use to the next."""
        # A pipeline frees no weights between backward of a micro-batch and the next forward.
        return self.spec.parallelism.reshard_after_forward == "never" or self.layout.pp > 1

    def moment(
        self,
        name: Literal["loss", "head", "block", "embedding"],
        *,
        gathered: int,
        activations: int = 0,
        logits: int = 0,
        gradients: int | None = None,
    ) -> MemoryEstimate:
        """Return the memory at one moment.

        Args:
            name: name of the current backward pass.
            gathered: bytes of unsharded weights and gradients of the active layers, before division
                by tensor parallelism.
            activations: bytes of activations that backward still needs.
            logits: bytes of a chunk's logits, and of values that the loss computes from them.
            gradients: bytes of stored gradients; by default, those of earlier micro-batches.
        """
        parts = {
            "weights": self.stored * self.weight,
            "gradients": self.earlier if gradients is None else gradients,
            # Adam's two moments; step counters are negligible.
            "optimizer_states": 2 * self.stored * BYTES[self.spec.optimizer.state_dtype],
        }
        passing = {
            "gathered": gathered // self.layout.tp,
            "activations": activations,
            "logits": logits,
        }
        parts |= passing | {"slack": round(SLACK * sum(passing.values()))}
        return MemoryEstimate(peak_at=name, **parts, total=sum(parts.values()))
