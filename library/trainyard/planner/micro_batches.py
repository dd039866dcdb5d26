"""Micro-batch sizes: legal sizes for a number of ranks, and the size with the least idle share."""

from __future__ import annotations

from dataclasses import replace

from trainyard.base.problems import divisors
from trainyard.planner.results import BatchPlan
from trainyard.training.batch_partition import BatchPartition

IDLE_SHARE_LIMIT = 0.1
"""Idle share above which a plan warns, and above which a smaller micro-batch size is chosen."""


def legal_micro_batch_size(
    global_batch_size: int, dp: int, *, at_most: int, rounds: int = 1
) -> int | None:
    """Return the largest legal micro-batch size up to `at_most`; None if no size is legal.

    A size is legal if each of the `dp` data-parallel ranks runs at least `rounds` rounds and has
    a micro-batch in the first round. That needs n = dp x (rounds - 1) + 1 micro-batches, or dp if
    dp is larger. So the size is at most (global - 1) // (n - 1) sequences.
    """
    least = max(dp, dp * (rounds - 1) + 1)
    if least > global_batch_size:
        return None
    return at_most if least == 1 else min(at_most, (global_batch_size - 1) // (least - 1))


def chosen_micro_batch_size(
    global_batch_size: int, dp: int, *, at_most: int, rounds: int = 1
) -> int | None:
    """Return the default micro-batch size of a job on `dp` ranks; None if no size is legal.

    The default is the largest legal size. If its idle share exceeds `IDLE_SHARE_LIMIT`, the
    default is the size with the least idle share. A few idle slots cost less than many rounds of
    small micro-batches.
    """
    largest = legal_micro_batch_size(global_batch_size, dp, at_most=at_most, rounds=rounds)
    if largest is None:
        return None
    if BatchPartition(global_batch_size, largest, dp).idle_share <= IDLE_SHARE_LIMIT:
        return largest
    return least_idle_micro_batch_size(global_batch_size, dp, at_most=largest)


def least_idle_micro_batch_size(global_batch_size: int, dp: int, *, at_most: int) -> int:
    """Return the largest micro-batch size up to `at_most` with the least idle share.

    The micro-batches of a rank have places for at least c = ceil(global / dp) sequences, and for
    exactly c if the size divides c. So the result is the largest legal divisor of c.

    Raises:
        ValueError: `dp` exceeds the global batch size, so that no size is legal.
    """
    largest = legal_micro_batch_size(global_batch_size, dp, at_most=at_most)
    if largest is None:
        raise ValueError(f"dp={dp} is more than the {global_batch_size} sequences of a step")
    slots = -(-global_batch_size // dp)
    return max(size for size in divisors(slots) if size <= largest)


def plan_batch(partition: BatchPartition) -> BatchPlan:
    """Return the cost of a partition, and a cheaper micro-batch size if one exists."""
    best = least_idle_micro_batch_size(
        partition.global_batch_size, partition.dp, at_most=partition.micro_batch_size
    )
    less = replace(partition, micro_batch_size=best).idle_share < partition.idle_share
    return BatchPlan(
        **vars(partition),
        micro_batches=partition.micro_batches,
        rounds=partition.rounds,
        idle_share=partition.idle_share,
        less_idle_micro_batch_size=best if less else None,
    )
