"""Tensor parallelism: several ranks share each matrix; also sequence and loss parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainyard.axes.base import (
    Axis,
    AxisFields,
    LayoutFacts,
    Sizes,
    Traffic,
    TrafficFacts,
    lacks_plan,
    legal_sizes,
    problem,
)
from trainyard.base.model_base import Ranks
from trainyard.base.problems import Problem, nearest


class TensorParallelFields(AxisFields):
    """Fields of tensor parallelism."""

    tp: Ranks = 1
    """Tensor parallelism: number of ranks that share each matrix."""
    async_tp: bool = False
    """Whether tensor-parallel communication overlaps with computation (CUDA with symmetric
    memory)."""
    sequence_parallel: bool = True
    """Whether activations between tensor-parallel regions are sharded along the sequence."""
    loss_parallel: bool = True
    """Whether the loss is computed on logits that are sharded along the vocabulary."""


def own_model(facts: LayoutFacts) -> Iterator[Problem]:
    """With tensor parallelism, a user's own model needs a plan for its matrices."""
    yield from lacks_plan(facts, "tp", plan="tensor", what="matrices")


def tensor_parallel(facts: LayoutFacts) -> Iterator[Problem]:
    """Each rank must have equal numbers of heads, feed-forward columns, vocabulary rows and, with
    `sequence_parallel`, tokens."""
    tp, cp, tokens = facts.size("tp"), facts.size("cp"), facts.seq_len
    if tp == 1:
        return
    a = facts.architecture
    sizes = {name: getattr(a, name) for name in ("n_heads", "n_kv_heads", "ffn_dim", "vocab_size")}
    uneven = [f"{name}={size}" for name, size in sizes.items() if size % tp]
    if uneven:
        legal = legal_sizes(lambda n: not any(size % n for size in sizes.values()))
        yield problem("tp", f"tp={tp} does not divide {', '.join(uneven)}; {nearest(tp, legal)}")
    if facts.options(TensorParallelFields).sequence_parallel and tokens % (cp * tp):
        legal = legal_sizes(lambda n: tokens % (cp * n) == 0)
        yield problem(
            "tp",
            f"tp={tp} with sequence_parallel cuts a sequence into cp x tp = {cp * tp} parts, but "
            f"seq_len={tokens}; {nearest(tp, legal)}, or sequence_parallel=false",
        )


def asynchronous(facts: LayoutFacts) -> Iterator[Problem]:
    """`async_tp` needs `tp` above 1, `sequence_parallel`, torch.compile and CUDA.

    torch.compile fuses the communication with the matrix products.
    """
    options, tp = facts.options(TensorParallelFields), facts.size("tp")
    if not options.async_tp:
        return
    needed = {
        f"ranks that share a matrix, but tp={tp}; legal: false, or tp from 2 on": tp > 1,
        "sequence_parallel, but it is false; legal: false, or sequence_parallel=true": (
            options.sequence_parallel
        ),
        "the compiler, but compile.enabled=false; legal: false, or compile.enabled=true": (
            facts.compiles
        ),
        "CUDA with symmetric memory, but device='cpu'; legal: false, or device='cuda'": (
            facts.device != "cpu"
        ),
    }
    for what, given in needed.items():
        if not given:
            yield problem("async_tp", f"async_tp=true needs {what}")


def exchanges_stream(facts: TrafficFacts) -> Traffic:
    """Return the traffic of the residual stream: two pairs of collectives per pass through a block.

    A pair is an all-gather and a reduce-scatter. Without `sequence_parallel`, an all-reduce
    replaces the pair and sends the same bytes. Embedding and head each have one pair.
    """
    ranks, options = facts.size("tp"), facts.options(TensorParallelFields)
    if ranks == 1:
        return Traffic()
    pairs = facts.blocks * 2 * (2 + facts.recomputed)
    pairs += sum(1 for weights in (facts.embedding_weights, facts.head_weights) if weights)
    pairs *= facts.micro_batches
    sent = 2 * facts.stream_bytes * (ranks - 1) / ranks
    return Traffic(
        pairs * sent, pairs * (2 if options.sequence_parallel else 1), overlaps=options.async_tp
    )


def resets(before: Sizes, after: Sizes) -> dict[str, Any]:
    """Return `async_tp` set to false if `tp` becomes 1."""
    return {"async_tp": False} if after["tp"] == 1 < before["tp"] else {}


FIELDS = TensorParallelFields
AXES = (
    Axis(
        name="tp",
        label="TP",
        order=40,
        # Innermost, because computation waits for four collectives per block. So the ranks are
        # adjacent on one node, where NVLink connects them.
        mesh_order=50,
        help="Tensor parallel ranks.",
        divides="matrices",
        scope="sequence",
        shards_weights=True,
        rules=(own_model, tensor_parallel, asynchronous),
        traffic=exchanges_stream,
        resets=resets,
    ),
)
