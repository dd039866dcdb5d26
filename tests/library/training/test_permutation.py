"""The order of an epoch: a bijection, fixed for ever, that differs with seed and epoch."""

from __future__ import annotations

from collections import Counter
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.training.permutation import Permutation, splitmix64


@given(n=st.integers(1, 500), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 2**40))
def test_every_index_comes_exactly_once(n: int, seed: int, epoch: int) -> None:
    assert sorted(map(Permutation(n, seed, epoch), range(n))) == list(range(n))


@given(n=st.integers(1, 2**62 - 1), seed=st.integers(0, 2**63 - 1), index=st.integers(0))
def test_any_entry_of_a_huge_epoch_is_found_alone(n: int, seed: int, index: int) -> None:
    permutation = Permutation(n, seed, 3)
    assert 0 <= permutation(index % n) < n
    assert (permutation(index % n) == permutation(n - 1)) == (index % n == n - 1)


def test_the_order_never_changes_between_versions() -> None:
    # Checkpoints of older versions depend on it: a change here needs a new format version.
    assert list(map(Permutation(10, 0, 0), range(10))) == [0, 9, 6, 7, 1, 8, 4, 3, 5, 2]
    huge = Permutation(2**40, 7, 5)
    assert [huge(i) for i in range(3)] == [235310464095, 741004025660, 656796954]


def test_the_hash_is_splitmix64() -> None:
    # The first outputs of the published generator for the seed 1234567.
    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    outputs = [splitmix64((1234567 + i * golden) & mask) for i in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = {
        tuple(map(Permutation(100, seed, epoch), range(10)))
        for seed in range(20)
        for epoch in range(20)
    }
    assert len(orders) == 400


@pytest.mark.parametrize("n", [2, 3, 5, 8, 13, 32])
def test_each_value_is_as_likely_at_each_index(n: int) -> None:
    epochs = 1000
    counts: Counter[tuple[int, int]] = Counter()
    for epoch in range(epochs):
        counts.update(enumerate(map(Permutation(n, 1, epoch), range(n))))
    # For independent uniform permutations the statistic has mean (n-1)**2 and variance of about
    # 2 (n-1)**2: more than six deviations off would be a flaw, not chance.
    squares = sum((counts[i, v] - epochs / n) ** 2 for i in range(n) for v in range(n))
    freedom = (n - 1) ** 2
    assert abs(squares * (n - 1) / epochs - freedom) < 6 * sqrt(2 * freedom)


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_outside_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match=rf"index {index} is outside range\(10\)"):
        Permutation(10, 0, 0)(index)


@pytest.mark.parametrize("n", [0, -1, 2**62])
def test_a_size_that_is_not_legal_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"n={n} must be positive"):
        Permutation(n, 0, 0)
