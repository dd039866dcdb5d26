"""Work of one step on the busiest rank, by quantity: operations, bytes and messages.

The quantities follow from spec and layout. Each is multiplied by a coefficient of the hardware in
seconds per unit (`trainyard.planner.speed.rates`); the sum of the products is the step time.
"""

from __future__ import annotations

import math

from trainyard.axes import AXES, MESH_AXES
from trainyard.axes.base import Traffic, TrafficFacts
from trainyard.planner.activations import (
    BYTES,
    activations_of_a_block,
    activations_of_the_head,
    width_of_the_stream,
)
from trainyard.planner.parameters import count_parameters
from trainyard.planner.pipeline_cost import plan_pipeline
from trainyard.planner.rank_contents import Part, parts_of
from trainyard.planner.speed.quantities import NodeKind, Quantity, StepWork
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.precision import number_format, quantized_elements
from trainyard.training.batch_partition import BatchPartition
from trainyard.training.flops import attention_flops_per_token, matmul_parameters_of_a_block

COMPILED = 0.5
"""Share of elementwise bytes, and of the host's kernel launches, that remains in compiled
blocks."""
SELECTIVE = 0.5
"""Share of a block's matrix products that backward recomputes under `selective`: every second
one."""
QUANTIZED = 0.6
"""Time of a float8 product with its casts, relative to a bfloat16 product, on a GPU with float8."""
EMULATED = 2.0
"""Time of an emulated float8 product on a CPU, relative to a product without quantization. The CPU
rounds the operands and multiplies in the dtype of the computation."""
COLLECTIVES_OF_A_STEP = 4
"""Number of collectives per step that belong to no axis: gradient norm, loss, digests,
decisions."""


def step_work(
    spec: JobSpec, layout: Layout, *, partition: BatchPartition, node: NodeKind
) -> StepWork:
    """Return the work of one step.

    Args:
        spec: the job, without `auto` values.
        layout: the parallel axes.
        partition: micro-batch size and rounds.
        node: kind of the nodes.

    Raises:
        SpecError: the pipeline cannot divide the model, or the batch into micro-batches.
    """
    pipeline = plan_pipeline(spec, layout, partition)
    rounds = partition.rounds if pipeline is None else pipeline.runs * pipeline.microbatches
    stages = 1 if pipeline is None else len(pipeline.layers) // layout.pp
    ranks = [
        _Rank(spec, layout, partition=partition, part=part, rounds=rounds)
        for part in parts_of(spec, layout)
    ]
    busiest = max(ranks, key=lambda rank: rank.flops)
    bubble = 0.0 if pipeline is None else pipeline.bubble_share
    mean = sum(rank.flops for rank in ranks) / len(ranks)
    crowding = node.crowding(layout.world_size)
    # Waiting ranks leave their cores to others, so either the slowest rank or the cores limit.
    stretch = max(1 / (1 - bubble), crowding * mean / busiest.flops)
    quantities = {name: amount * stretch for name, amount in busiest.computed().items()}
    hidden: dict[Quantity, float] = {}
    sent = [rank.traffic(stages) for rank in ranks]
    most = max(sent, key=lambda traffic: sum(each.sent_bytes for _, each in traffic))
    messages = COLLECTIVES_OF_A_STEP if layout.world_size > 1 else 0.0
    for axis, traffic in most:
        link: Quantity = "network_bytes" if _leaves_node(axis, layout, node) else "node_bytes"
        into = hidden if traffic.overlaps and node.device == "cuda" else quantities
        into[link] = into.get(link, 0.0) + traffic.sent_bytes * crowding
        messages += traffic.messages
    quantities["messages"] = messages * crowding
    quantities["steps"] = crowding
    return StepWork(quantities, hidden, node.device)


def _leaves_node(axis: str, layout: Layout, node: NodeKind) -> bool:
    """Return whether the ranks of an axis span several nodes."""
    reach = 1
    for each in reversed(MESH_AXES):  # the fastest-varying axis first
        reach *= layout.size(each.name)
        if each.name == axis:
            return reach > node.slots and layout.size(axis) > 1
    return layout.world_size > node.slots  # an axis that regroups the ranks of other axes


class _Rank:
    """One rank of a pipeline; without a pipeline, a rank with the whole model."""

    def __init__(
        self, spec: JobSpec, layout: Layout, *, partition: BatchPartition, part: Part, rounds: int
    ) -> None:
        self.spec, self.layout, self.part, self.rounds = spec, layout, part, rounds
        self.shape = a = spec.architecture
        shared = math.prod(layout.size(axis.name) for axis in AXES if axis.divides == "tokens")
        self.matrices = math.prod(
            layout.size(axis.name) for axis in AXES if axis.divides == "matrices"
        )
        sequences = min(partition.micro_batch_size, partition.global_batch_size)
        self.tokens = sequences * spec.training.seq_len / shared
        self.compute = BYTES[spec.training.param_dtype]
        self.repeated = _repeated(spec)
        self.head = a.vocab_size * a.dim if part.head else 0
        blocks = part.layers * matmul_parameters_of_a_block(a)
        passes = 3 + self.repeated
        products = 2 * self.tokens * (blocks * passes * _quantized(spec) + 3 * self.head)
        of_a_token = attention_flops_per_token(a, spec.training.seq_len) / a.n_layers
        attention = self.tokens * of_a_token * part.layers
        self.products = rounds * products / self.matrices
        self.attention = rounds * attention * (3 + _repeated_attention(spec)) / self.matrices
        self.flops = self.products + self.attention

    def computed(self) -> dict[Quantity, float]:
        """Return the computation of the rank, by quantity."""
        spec, part = self.spec, self.part
        fewer = COMPILED if spec.compile.enabled is True else 1.0
        product: Quantity = "float32_flops" if self.compute == 4 else "bfloat16_flops"
        return {
            product: self.products,
            "attention_flops": self.attention,
            "moved_bytes": self.rounds * self._moved(fewer),
            "updated_bytes": self._updated(),
            "block_passes": self.rounds * part.layers * (3 + self.repeated) * fewer,
            "rounds": self.rounds,
        }

    def _moved(self, fewer: float) -> float:
        """Return the bytes that one micro-batch reads and writes for activations and logits."""
        spec, tokens = self.spec, math.ceil(self.tokens)
        saved = activations_of_a_block(spec, self.layout, tokens=tokens)
        moved = self.part.layers * saved * (3 + self.repeated) * fewer
        if self.part.head:
            rows = self.shape.vocab_size / self.matrices
            each = self.compute if spec.resources.device != "cpu" else 3 * BYTES["float32"]
            moved += 3 * activations_of_the_head(spec, tokens=tokens)
            moved += 3 * tokens * rows * each
        return moved

    def _updated(self) -> float:
        """Return the bytes that the gradient norm and the update read and write in the rank's
        shards."""
        counted = self.part.parameters(count_parameters(self.shape))
        shards = math.prod(self.layout.size(axis.name) for axis in AXES if axis.shards_weights)
        weight, state = self.spec.training.weight_dtype, self.spec.optimizer.state_dtype
        return counted / shards * (4 * BYTES[weight] + 4 * BYTES[state])

    def traffic(self, stages: int) -> list[tuple[str, Traffic]]:
        """Return the rank's traffic by axis; `stages` is the number of pipeline stages on the
        rank."""
        spec, layout, a = self.spec, self.layout, self.shape
        counted = count_parameters(a)
        heads = self.tokens * self.compute / self.matrices
        last = counted.head + counted.final_norm if self.part.head else 0
        facts = TrafficFacts(
            sizes=layout.sizes,
            section=spec.parallelism,
            sharded=spec.is_sharded(layout),
            blocks=self.part.layers,
            block_weights=self.part.layers * counted.block // self.matrices,
            embedding_weights=counted.embedding // self.matrices if self.part.embedding else 0,
            head_weights=last // self.matrices,
            compute_bytes=self.compute,
            reduce_bytes=BYTES[spec.training.reduce_dtype],
            micro_batches=self.rounds,
            stages=stages,
            stream_bytes=round(self.tokens * a.dim * self.compute),
            held_stream_bytes=round(self.tokens * width_of_the_stream(spec, layout)),
            query_bytes=round(heads * a.attention_dim),
            kv_bytes=round(2 * heads * a.n_kv_heads * a.head_dim),
            recomputed=self.repeated,
        )
        return [(axis.name, axis.traffic(facts)) for axis in AXES]


def _repeated(spec: JobSpec) -> float:
    """Return the share of a block's forward pass that backward recomputes."""
    match spec.activation_checkpoint.mode:
        case "none":
            return 0.0
        case "full":
            return 1.0
        case "selective":
            return SELECTIVE
        case "memory_budget":
            return 1.0 - spec.activation_checkpoint.memory_budget


def _repeated_attention(spec: JobSpec) -> float:
    """Return the share of attention that backward recomputes; `selective` keeps its output."""
    return 0.0 if spec.activation_checkpoint.mode == "selective" else _repeated(spec)


def _quantized(spec: JobSpec) -> float:
    """Return the time of a block's matrix products, as a multiple of the time without
    quantization."""
    if number_format(spec) is None:
        return 1.0
    part = quantized_elements(spec) / matmul_parameters_of_a_block(spec.architecture)
    part = min(part, 1.0)  # the quantized weights of a hub model are estimated from its shape
    return 1.0 + part * ((EMULATED if spec.resources.device == "cpu" else QUANTIZED) - 1.0)
