"""Micro-batch sizes: the closed forms against a search, and the partition behind them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.planner.micro_batches import (
    least_idle_micro_batch_size,
    legal_micro_batch_size,
    plan_batch,
)
from trainyard.training.batch_partition import BatchPartition

sizes = st.integers(1, 60)


def is_legal(global_batch_size: int, size: int, dp: int) -> bool:
    try:
        BatchPartition(global_batch_size, size, dp)
    except ValueError:
        return False
    return True


@given(sizes, st.integers(1, 16), st.integers(1, 70))
def test_the_legal_size_is_the_largest_that_the_deal_accepts(
    global_batch_size: int, dp: int, at_most: int
) -> None:
    legal = [s for s in range(1, at_most + 1) if is_legal(global_batch_size, s, dp)]
    found = legal_micro_batch_size(global_batch_size, dp, at_most=at_most)
    assert found == max(legal, default=None)


@given(sizes, st.integers(1, 16), st.integers(1, 70))
def test_the_least_idle_size_is_the_largest_of_the_best(
    global_batch_size: int, dp: int, at_most: int
) -> None:
    if dp > global_batch_size:
        with pytest.raises(ValueError, match=f"dp={dp} is more than the {global_batch_size}"):
            least_idle_micro_batch_size(global_batch_size, dp, at_most=at_most)
        return
    idle = {
        size: BatchPartition(global_batch_size, size, dp).idle_share
        for size in range(1, at_most + 1)
        if is_legal(global_batch_size, size, dp)
    }
    best = max(size for size, share in idle.items() if share == min(idle.values()))
    assert least_idle_micro_batch_size(global_batch_size, dp, at_most=at_most) == best


@given(sizes, st.integers(1, 20), st.integers(1, 16))
def test_every_sequence_is_dealt_exactly_once_and_the_idle_share_is_the_rest(
    global_batch_size: int, size: int, dp: int
) -> None:
    if not is_legal(global_batch_size, size, dp):
        return
    partition = BatchPartition(global_batch_size, size, dp)
    rounds = [partition.for_rank(rank) for rank in range(dp)]
    assert {len(of_rank) for of_rank in rounds} == {partition.rounds}
    dealt = [sequence for of_rank in rounds for batch in of_rank for sequence in batch]
    assert sorted(dealt) == list(range(global_batch_size))
    plan = plan_batch(partition)
    assert 0 <= plan.idle_share < 1
    slots = partition.rounds * dp * size
    assert plan.idle_share == pytest.approx((slots - len(dealt)) / slots)


def test_sixteen_sequences_on_three_ranks() -> None:
    plan = plan_batch(BatchPartition(16, 4, 3))
    assert (plan.micro_batches, plan.rounds) == (4, 2)
    assert plan.idle_share == pytest.approx(8 / 24)
    assert plan.less_idle_micro_batch_size == 3
    assert plan_batch(BatchPartition(16, 3, 3)).less_idle_micro_batch_size is None


def test_five_hundred_and_twelve_sequences_on_seven_ranks() -> None:
    plan = plan_batch(BatchPartition(512, 4, 7))
    assert (plan.micro_batches, plan.rounds) == (128, 19)
    assert plan.idle_share == pytest.approx(1 - 512 / (19 * 7 * 4))


def test_large_numbers_are_answered_at_once() -> None:
    assert least_idle_micro_batch_size(10**7, 1, at_most=10**7) == 10**7
