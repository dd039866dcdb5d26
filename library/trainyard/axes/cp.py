"""Context parallelism: several ranks share one sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from trainyard.axes.base import (
    Axis,
    AxisFields,
    LayoutFacts,
    Traffic,
    TrafficFacts,
    legal_sizes,
    problem,
)
from trainyard.base.model_base import Ranks
from trainyard.base.problems import Problem, nearest


class ContextParallelFields(AxisFields):
    """Fields of context parallelism."""

    cp: Ranks = 1
    """Context parallelism: number of ranks that share one sequence."""
    cp_method: Literal["allgather_kv", "ulysses"] = "allgather_kv"
    """Method by which context-parallel ranks attend to the keys of other ranks."""


def own_model(facts: LayoutFacts) -> Iterator[Problem]:
    """Context parallelism is illegal with a user's own model.

    Trainyard cannot divide the attention of such a model.
    """
    if facts.own_plans is not None and facts.size("cp") > 1:
        yield problem(
            "cp",
            f"cp={facts.size('cp')} divides a sequence, but a model of model.factory has its own "
            "attention, which needs whole sequences; legal: cp=1",
        )


def context_parallel(facts: LayoutFacts) -> Iterator[Problem]:
    """Each rank must have equally many tokens and, with `ulysses`, equally many heads."""
    cp, tp, tokens = facts.size("cp"), facts.size("tp"), facts.seq_len
    if cp == 1:
        return
    method = facts.options(ContextParallelFields).cp_method
    # Head-tail balancing gives each rank a part from the start and a part from the end.
    parts = 2 if method == "allgather_kv" else 1
    if tokens % (parts * cp):
        legal = legal_sizes(lambda n: n == 1 or tokens % (parts * n) == 0)
        yield problem(
            "cp",
            f"cp={cp} with {method} cuts a sequence into {parts * cp} parts, but "
            f"seq_len={tokens}; {nearest(cp, legal)}",
        )
    if method != "ulysses":
        return
    a = facts.architecture
    heads = {"n_heads": a.n_heads, "n_kv_heads": a.n_kv_heads}
    uneven = [f"{name}={number}" for name, number in heads.items() if number % (cp * tp)]
    if uneven:
        legal = legal_sizes(
            lambda n: n == 1 or not any(number % (n * tp) for number in heads.values())
        )
        yield problem(
            "cp",
            f"cp={cp} with ulysses gives cp x tp = {cp * tp} ranks heads of their own, but "
            f"{', '.join(uneven)}; {nearest(cp, legal)}, or cp_method='allgather_kv'",
        )


def exchanges_keys(facts: TrafficFacts) -> Traffic:
    """Return the traffic for the exchange of keys and values in each block.

    `allgather_kv` gathers keys and values in forward, and sums their gradients in backward.
    `ulysses` exchanges queries, keys and values, then the outputs of attention; backward does the
    same.
    """
    ranks = facts.size("cp")
    if ranks == 1:
        return Traffic()
    passes = facts.blocks * facts.micro_batches * (2 + facts.recomputed)
    if facts.options(ContextParallelFields).cp_method == "ulysses":
        exchanged = (2 * facts.query_bytes + facts.kv_bytes) * (ranks - 1) / ranks
        return Traffic(passes * exchanged, 2 * passes)
    return Traffic(passes * facts.kv_bytes * (ranks - 1), passes)


FIELDS = ContextParallelFields
AXES = (
    Axis(
        name="cp",
        label="CP",
        order=30,
        mesh_order=40,  # exchanges keys and values in every block
        help="Context parallel ranks.",
        divides="tokens",
        scope="sequence",
        # The ranks use the same weights and sum their gradients, so FSDP shards over them too.
        shards_weights=True,
        rules=(own_model, context_parallel),
        traffic=exchanges_keys,
    ),
)
