"""Decision flow from the size of a model to its parallel axes; the presets follow this flow.

`docs/strategy.md` is generated from `FLOW`. The first rule that applies is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainyard.planner.parameters import count_parameters
from trainyard.planner.results import Strategy
from trainyard.spec.job import JobSpec

BILLION = 10**9
LONG_SEQUENCE = 32_768
"""Sequence length above which the activations of a sequence need more memory than a layer's
weights."""


@dataclass(frozen=True)
class StrategyRule:
    """A question in the flow, and the strategy for the answer yes."""

    question: str
    """Text of the question, for people."""
    applies: Callable[[int, int], bool]
    """Return the answer, given the number of parameters and the tokens per sequence."""
    strategy: Strategy


FLOW: tuple[StrategyRule, ...] = (
    StrategyRule(
        f"Are sequences longer than {LONG_SEQUENCE:,} tokens?",
        lambda _, tokens: tokens > LONG_SEQUENCE,
        Strategy(
            preset="long_context",
            axes=("cp",),
            advice='`cp` up to the ranks of a node, `activation_checkpoint.mode = "full"`; FSDP '
            "shards the weights over the same ranks",
            why="Activations grow with the tokens of a sequence, and without more sequences no "
            "other axis divides the activations of attention.",
        ),
    ),
    StrategyRule(
        "Does the model have more than 100 billion parameters?",
        lambda parameters, _: parameters > 100 * BILLION,
        Strategy(
            preset="over_100b",
            axes=("pp", "dp_shard", "tp"),
            advice="`tp` within a node, `pp` across nodes with an interleaved schedule, `dp_shard` "
            "for the rest",
            why="FSDP over all ranks would gather each layer over the network for every "
            "micro-batch; a pipeline sends one activation instead.",
        ),
    ),
    StrategyRule(
        "Does it have more than 10 billion?",
        lambda parameters, _: parameters > 10 * BILLION,
        Strategy(
            preset="from_10b_to_100b",
            axes=("dp_shard", "tp"),
            advice="`dp_shard` with `tp = 2` to 8 inside a node, `async_tp` where GPUs have NVLink",
            why="A gathered layer and its activations no longer fit next to the shards; ranks that "
            "share each matrix hold a part of both.",
        ),
    ),
    StrategyRule(
        "Otherwise",
        lambda _parameters, _tokens: True,
        Strategy(
            preset="up_to_10b",
            axes=("dp_shard",),
            advice="`dp_shard` over the ranks of a node, `dp_replicate` over nodes",
            why="16 bytes per parameter fit when eight ranks share them, and no matrix needs to be "
            "cut.",
        ),
    ),
)
"""Rules in order; the first rule that applies is used."""


def choose_strategy(*, parameters: int, seq_len: int) -> Strategy:
    """Return the recommended strategy for a model.

    Args:
        parameters: number of parameters in the whole model.
        seq_len: number of tokens per sequence.
    """
    return next(each.strategy for each in FLOW if each.applies(parameters, seq_len))


def strategy_of(spec: JobSpec) -> Strategy:
    """Return the recommended strategy for a job of the built-in trainer."""
    total = count_parameters(spec.architecture).total
    return choose_strategy(parameters=total, seq_len=spec.training.seq_len)
