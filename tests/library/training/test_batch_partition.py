"""The partition of micro-batches: its rule by hand, and what it refuses."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.training.batch_partition import BatchPartition


def test_micro_batches_are_cut_in_order_and_dealt_in_turn() -> None:
    partition = BatchPartition(global_batch_size=16, micro_batch_size=3, dp=4)
    assert partition.for_rank(0) == [range(3), range(12, 15)]
    assert partition.for_rank(1) == [range(3, 6), range(15, 16)]
    assert partition.for_rank(2) == [range(6, 9), range(0)]
    assert partition.for_rank(3) == [range(9, 12), range(0)]
    assert (partition.micro_batches, partition.rounds) == (6, 2)
    assert partition.idle_share == pytest.approx(8 / 24)


@given(st.integers(1, 64), st.integers(1, 20), st.integers(1, 16))
def test_micro_batch_i_goes_to_rank_i_modulo_dp(batch: int, size: int, dp: int) -> None:
    if dp > -(-batch // size):
        with pytest.raises(ValueError, match=f"dp={dp} is more than the {-(-batch // size)} "):
            BatchPartition(batch, size, dp)
        return
    partition = BatchPartition(batch, size, dp)
    by_rank = [partition.for_rank(rank) for rank in range(dp)]
    in_turn = [by_rank[i % dp][i // dp] for i in range(partition.rounds * dp)]
    dealt = [sequence for batch_of_rank in in_turn for sequence in batch_of_rank]
    assert dealt == list(range(batch))
    assert all(len(b) == size for b in in_turn[: partition.micro_batches - 1])
    assert all(len(b) == 0 for b in in_turn[partition.micro_batches :])
    assert 0 <= partition.idle_share < 1


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-4, 1, 1)])
def test_numbers_below_one_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        BatchPartition(*numbers)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (
            (16, 4, 8),
            "dp=8 is more than the 4 micro-batches of global_batch_size=16 with "
            "micro_batch_size=4; legal: dp up to 4 or micro_batch_size up to 2",
        ),
        (  # 3 x 7 = 21: eight ranks with three sequences each would need at least 22
            (21, 4, 8),
            "dp=8 is more than the 6 micro-batches of global_batch_size=21 with "
            "micro_batch_size=4; legal: dp up to 6 or micro_batch_size up to 2",
        ),
        (
            (22, 4, 8),
            "dp=8 is more than the 6 micro-batches of global_batch_size=22 with "
            "micro_batch_size=4; legal: dp up to 6 or micro_batch_size up to 3",
        ),
        (  # even micro-batches of one sequence are too few
            (3, 1, 4),
            "dp=4 is more than the 3 micro-batches of global_batch_size=3 with "
            "micro_batch_size=1; legal: dp up to 3",
        ),
    ],
)
def test_a_refusal_names_the_largest_legal_numbers(
    numbers: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        BatchPartition(*numbers)
