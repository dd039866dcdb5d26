"""Maps positions in the stream to windows in the token file, without any state to save."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainyard.training.permutation import Permutation

SPLIT = -1
"""Epoch number for the permutation that splits off held-out windows; no real epoch has this number.
"""


def split_windows(windows: int, fraction: float) -> tuple[int, int]:
    """Return the number of training windows and the number of held-out windows."""
    held_out = int(windows * fraction)
    return windows - held_out, held_out


def entries(permutation: Permutation, index_B: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the entry of a permutation at each index `[B]`.

    Raises:
        IndexError: an index is outside of `range(permutation.n)`.
    """
    if index_B.size and (index_B.min() < 0 or index_B.max() >= permutation.n):
        raise IndexError(f"an index is outside range({permutation.n})")
    values_B = permutation.permute_bits(index_B.astype(np.uint64))
    outside = np.flatnonzero(values_B >= permutation.n)
    while outside.size:
        values_B[outside] = permutation.permute_bits(values_B[outside])
        outside = outside[values_B[outside] >= permutation.n]
    return values_B.astype(np.int64)


class TrainingOrder:
    """The order of training: each epoch has every training window once; the order differs by epoch.

    Position p gets entry `p % n_sequences` of the permutation for epoch `p // n_sequences`. Without
    held-out windows, the entry is the window. With held-out windows, the entry is an index into the
    split's permutation, whose first `n_sequences` entries are the training windows.
    """

    def __init__(self, windows: int, *, seed: int, fraction: float) -> None:
        self.n_sequences, held_out = split_windows(windows, fraction)
        self._split = Permutation(windows, seed, SPLIT) if held_out else None
        self._permutation = lru_cache(maxsize=2)(
            lambda epoch: Permutation(self.n_sequences, seed, epoch)
        )

    def __call__(self, positions_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the window for each position `[B]`."""
        epochs_B, within_B = np.divmod(positions_B, self.n_sequences)
        order_B = np.empty_like(within_B)
        for epoch in np.unique(epochs_B):
            chosen = epochs_B == epoch
            order_B[chosen] = entries(self._permutation(int(epoch)), within_B[chosen])
        return order_B if self._split is None else entries(self._split, order_B)


class HeldOutOrder:
    """Held-out windows: the end of the split's permutation, in the same order in every epoch."""

    def __init__(self, windows: int, *, seed: int, fraction: float) -> None:
        self._first, self.n_sequences = split_windows(windows, fraction)
        self._split = Permutation(windows, seed, SPLIT)

    def __call__(self, positions_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the window for each position `[B]`."""
        return entries(self._split, self._first + positions_B % self.n_sequences)


Order = TrainingOrder | HeldOutOrder
"""Maps positions in an endless stream to windows."""
