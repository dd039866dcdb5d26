"""The sample at a position: fixed forever, whole epochs, and mixtures with fixed weights."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainyard.data import EpochOrder, Mixture, fold_seed

SEEDS = st.integers(0, 2**63 - 1)
PARTS = st.lists(st.integers(1, 30), min_size=1, max_size=8)


def test_seeds_never_change_between_versions() -> None:
    assert [
        fold_seed(0),
        fold_seed(0, 0),
        fold_seed(7, 1, 2),
        fold_seed(7, 2, 1),
        fold_seed(2**64 - 1, 2**63, 5),
    ] == [
        8147104208329303767,
        6017775124710473527,
        4382405004162797328,
        7175380381600856277,
        2691064291917646997,
    ]


def test_orders_never_change_between_versions() -> None:
    assert list(map(EpochOrder(7, 3), range(14))) == [2, 1, 6, 3, 4, 0, 5, 0, 2, 3, 1, 5, 4, 6]
    mixture = Mixture([5, 3, 100], [0.5, 0.3, 0.2], seed=9)
    firsts = [(0, 4), (1, 2), (0, 3), (2, 37), (0, 2), (1, 1), (0, 0), (1, 0), (0, 1), (2, 1)]
    assert list(map(mixture, range(10))) == firsts


def test_seeds_differ_with_each_number_and_their_order() -> None:
    seeds = {
        fold_seed(seed, step, n) for seed in range(20) for step in range(20) for n in range(20)
    }
    assert len(seeds) == 8000
    assert 0 <= min(seeds) <= max(seeds) < 2**63
    assert fold_seed(1, 2) != fold_seed(1, 2, 0)


@pytest.mark.parametrize("seed", [fold_seed(0, 0), 0, 2**63 - 1])
def test_the_generators_of_each_library_take_every_seed(seed: int) -> None:
    draws = [
        (
            torch.rand(1, generator=torch.Generator().manual_seed(seed)).item(),
            np.random.default_rng(seed).random(),
            random.Random(seed).random(),
        )
        for _ in range(2)
    ]
    assert draws[0] == draws[1]


@given(st.integers(1, 60), SEEDS, st.integers(0, 2**40))
def test_each_epoch_has_every_sample_once(length: int, seed: int, epoch: int) -> None:
    first = epoch * length
    order = EpochOrder(length, seed)
    assert sorted(map(order, range(first, first + length))) == list(range(length))
    plain = EpochOrder(length, seed, shuffle=False)
    assert list(map(plain, range(first, first + length))) == list(range(length))


@given(PARTS, SEEDS)
def test_counts_of_a_mixture_are_within_one_of_the_weights_at_every_prefix(
    parts: list[int], seed: int
) -> None:
    mixture, total = Mixture([10] * len(parts), parts, seed), sum(parts)
    counts: Counter[int] = Counter()
    for taken in range(1, 2 * total + 2):
        counts[mixture(taken - 1)[0]] += 1
        assert all(
            abs(counts[source] - Fraction(taken * part, total)) < 1
            for source, part in enumerate(parts)
        )


@given(PARTS, SEEDS, st.data())
def test_each_data_set_of_a_mixture_has_its_own_epochs(
    parts: list[int], seed: int, data: st.DataObject
) -> None:
    lengths = [data.draw(st.integers(1, 20)) for _ in parts]
    mixture = Mixture(lengths, parts, seed)
    taken: dict[int, list[int]] = {source: [] for source in range(len(parts))}
    for position in range(3 * sum(parts)):
        source, index = mixture(position)
        taken[source].append(index)
    for source, length in enumerate(lengths):
        order = EpochOrder(length, fold_seed(seed, source))
        assert taken[source] == list(map(order, range(len(taken[source]))))


def test_any_position_of_a_mixture_is_found_alone() -> None:
    lengths, weights = [2**40, 1000], [0.9, 0.1]
    far = 10**15 + 7
    fresh = Mixture(lengths, weights, seed=1)(far)
    walked = Mixture(lengths, weights, seed=1)
    assert [walked(p) for p in range(far - 30, far + 1)][-1] == fresh
    plain = Mixture(lengths, weights, seed=1, shuffle=False)
    taken = [plain(p) for p in range(far // 10 * 10, far // 10 * 10 + 10)]
    assert [index for source, index in taken if source == 1] == [far // 10 % 1000]


@pytest.mark.parametrize("weights", [(7, 2, 1), (0.7, 0.2, 0.1), (Fraction(7, 10), 0.2, 0.1)])
def test_weights_are_taken_as_written(weights: tuple[float, ...]) -> None:
    mixture = Mixture([5, 5, 5], weights, seed=4)
    assert [mixture(p) for p in range(40)] == [
        Mixture([5, 5, 5], [70, 20, 10], seed=4)(p) for p in range(40)
    ]


def test_a_mixture_of_the_longest_pattern_is_made() -> None:
    mixture = Mixture([10, 10], [99_999, 1], seed=0, shuffle=False)
    rare = [mixture(99_999), mixture(199_999), mixture(100_000 * 12 - 1)]
    assert rare == [(1, 0), (1, 1), (1, 1)]
    assert mixture(99_998) == (0, 99_998 % 10)


@pytest.mark.parametrize(
    ("lengths", "weights", "message"),
    [
        ([1, 2], [1], "lengths has 2 and weights 1 entries"),
        ([], [], "at least one data set"),
        ([5, 5], [1, 0], "weight 0 must be positive and finite"),
        ([5, 5], [1, -0.5], "weight -0.5 must be positive"),
        ([5, 5], [1, nan], "weight nan must be positive"),
        ([5, 5], [1, inf], "weight inf must be positive"),
        ([5, 5], [0.1234567, 0.5], "have 6234567 parts in all; legal: up to 100000"),
        ([5, 0], [1, 1], "length=0 must be from 1 to"),
    ],
)
def test_a_mixture_that_is_not_legal_is_refused(
    lengths: list[int], weights: list[float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Mixture(lengths, weights, seed=0)


def test_positions_before_the_first_are_refused() -> None:
    for order in (EpochOrder(5, 0), Mixture([5], [1], 0)):
        with pytest.raises(ValueError, match="position=-1 must not be negative"):
            order(-1)
