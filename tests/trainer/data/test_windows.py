"""The held-out split: stateless, never trained on, and refused when it would be empty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.data.helpers import open_text, text_root, text_spec
from trainer.data.survey import check_input
from trainer.data.windows import HeldOutOrder, TrainingOrder, entries, split_windows
from trainer.errors import DataError
from trainyard.data import EpochOrder
from trainyard.training.permutation import Permutation


@given(st.integers(2, 300), st.floats(0.01, 0.99), st.integers(0, 2**63 - 1))
def test_every_window_is_either_trained_on_or_held_out(
    windows: int, fraction: float, seed: int
) -> None:
    training, held_out = split_windows(windows, fraction)
    assert training + held_out == windows
    if not held_out:
        return
    order = TrainingOrder(windows, seed=seed, fraction=fraction)
    held = HeldOutOrder(windows, seed=seed, fraction=fraction)
    seen = order(np.arange(3 * training)).reshape(3, training)
    kept = held(np.arange(2 * held_out)).reshape(2, held_out)
    assert np.array_equal(kept[0], kept[1])  # one order for every epoch
    for epoch in seen:
        assert sorted([*epoch, *kept[0]]) == list(range(windows))


def test_without_a_split_the_order_is_that_of_the_permutation_alone() -> None:
    positions = np.arange(100)
    order = TrainingOrder(50, seed=3, fraction=0.0)(positions)
    assert order.tolist() == [Permutation(50, 3, e)(i) for e in (0, 1) for i in range(50)]


@given(n=st.integers(1, 2**62 - 1), seed=st.integers(0, 2**63 - 1), index=st.integers(0))
def test_entries_of_many_indices_are_those_of_each(n: int, seed: int, index: int) -> None:
    permutation = Permutation(n, seed, 3)
    indices = [index % n, 0, n - 1, index % n]
    assert entries(permutation, np.array(indices)).tolist() == list(map(permutation, indices))


@pytest.mark.parametrize("index", [-1, 10])
def test_entries_outside_are_refused(index: int) -> None:
    with pytest.raises(IndexError, match=r"range\(10\)"):
        entries(Permutation(10, 0, 0), np.array([0, index]))


def test_programs_get_the_order_of_the_trainer() -> None:
    positions = np.arange(5, 125)
    order = EpochOrder(50, seed=3)
    trained = TrainingOrder(50, seed=3, fraction=0.0)(positions)
    assert trained.tolist() == [order(p) for p in positions.tolist()]


def test_the_split_depends_on_the_seed_and_is_spread_over_the_input() -> None:
    held = [np.sort(HeldOutOrder(1000, seed=s, fraction=0.1)(np.arange(100))) for s in (1, 2)]
    assert not np.array_equal(held[0], held[1])
    assert all(np.histogram(h, bins=4, range=(0, 1000))[0].min() > 10 for h in held)


def test_a_dataset_has_its_validation_windows(tmp_path: Path) -> None:
    root = text_root(tmp_path, sequences=40)
    whole, parted = open_text(root), open_text(root, validation_fraction=0.26)
    assert whole.validation is None
    assert parted.validation is not None
    assert (parted.n_sequences, parted.validation.n_sequences) == (30, 10)
    assert parted.validation.seq_len == parted.seq_len
    assert parted.validation.validation is None
    windows = [
        {tuple(w) for w in d.windows(np.arange(d.n_sequences)).tolist()}
        for d in (whole, parted, parted.validation)
    ]
    assert windows[1] | windows[2] == windows[0]
    assert not windows[1] & windows[2]
    assert np.array_equal(*parted.validation.windows(np.array([3, 13])))


def test_the_split_is_part_of_the_digest(tmp_path: Path) -> None:
    root = text_root(tmp_path, sequences=40)
    digests = {open_text(root, validation_fraction=f).digest for f in (0.0, 0.1, 0.2)}
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("sequences", "fraction", "legal"),
    [(40, 0.02, "legal: from 0.0253 to below 1"), (1, 0.5, "one sequence cannot be divided")],
)
def test_a_fraction_that_leaves_nothing_is_refused_with_the_numbers(
    tmp_path: Path, sequences: int, fraction: float, legal: str
) -> None:
    root = text_root(tmp_path, sequences=sequences)
    with pytest.raises(DataError) as caught:
        check_input(text_spec(validation_fraction=fraction), {"data": str(root)})
    assert (
        f"{sequences} sequences of training.seq_len=8, of which data.validation_fraction={fraction}"
        f" leaves {sequences} for training and 0 for validation; {legal}"
    ) in str(caught.value)
    if sequences > 1:
        check_input(text_spec(validation_fraction=0.0253), {"data": str(root)})
