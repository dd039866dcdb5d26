"""The order of an epoch: a bijection, fixed for ever, that differs with seed and epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.permutation import Permutation


@given(n=st.integers(1, 5000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 2**40))
def test_every_index_comes_exactly_once(n: int, seed: int, epoch: int) -> None:
    permuted = Permutation(n, seed, epoch)(np.arange(n))
    assert np.array_equal(np.sort(permuted), np.arange(n))


@given(n=st.integers(1, 2**62 - 1), seed=st.integers(0, 2**63 - 1), index=st.integers(0))
def test_any_entry_of_a_huge_epoch_is_found_alone(n: int, seed: int, index: int) -> None:
    permutation = Permutation(n, seed, 3)
    indices = np.array([[index % n, 0], [n - 1, index % n]])
    permuted = permutation(indices)
    assert permuted.shape == (2, 2)
    assert permuted.min() >= 0
    assert permuted.max() < n
    assert permuted[0, 0] == permuted[1, 1] == permutation(np.array([index % n]))[0]


def test_the_order_never_changes_between_versions() -> None:
    # Checkpoints of older versions depend on it: a change here needs a new format version.
    assert Permutation(10, 0, 0)(np.arange(10)).tolist() == [0, 9, 6, 7, 1, 8, 4, 3, 5, 2]
    huge = Permutation(2**40, 7, 5)(np.arange(3)).tolist()
    assert huge == [235310464095, 741004025660, 656796954]


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = {
        tuple(Permutation(100, seed, epoch)(np.arange(100)))
        for seed in range(20)
        for epoch in range(20)
    }
    assert len(orders) == 400


@pytest.mark.parametrize("n", [2, 3, 5, 8, 13, 64, 100])
def test_each_value_is_as_likely_at_each_index(n: int) -> None:
    epochs = 4000
    orders = np.stack([Permutation(n, 1, epoch)(np.arange(n)) for epoch in range(epochs)])
    counts = np.stack([np.bincount(orders[:, i], minlength=n) for i in range(n)])
    # For independent uniform permutations the statistic has mean (n-1)**2 and variance of about
    # 2 (n-1)**2: more than six deviations off would be a flaw, not chance.
    statistic = ((counts - epochs / n) ** 2).sum() * n / epochs
    freedom = (n - 1) ** 2
    assert abs(statistic * (n - 1) / n - freedom) < 6 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("index", [-1, 10])
def test_an_index_outside_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match=r"range\(10\)"):
        Permutation(10, 0, 0)(np.array([0, index]))


@pytest.mark.parametrize("n", [0, -1, 2**62])
def test_a_size_that_is_not_legal_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"n={n} must be positive"):
        Permutation(n, 0, 0)
