"""The order of the sequences within an epoch: a stateless bijection."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: the increment of splitmix64
ROUNDS = 8


class Permutation:
    """A permutation of `range(n)` that is a pure function of (seed, epoch).

    A Feistel network with splitmix64 as its round function permutes the numbers of
    `(n - 1).bit_length()` bits; a result of n or more is permuted again until it falls below n
    (cycle walking, on average less than twice). Any entry takes constant time and memory.

    Sources: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002); Steele, Lea and
    Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
    """

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        if not 1 <= n < 1 << 62:
            raise ValueError(f"n={n} must be positive and below 2**62")
        self.n = n
        bits = (n - 1).bit_length()
        self._low_bits = np.uint64(bits - bits // 2)
        self._low_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        self._high_mask = np.uint64((1 << (bits // 2)) - 1)
        base = _splitmix64_int(_splitmix64_int(seed & MASK64) + epoch)
        self._keys = [np.uint64(_splitmix64_int(base + r * GOLDEN)) for r in range(ROUNDS)]

    def __call__(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the entry at each index, in the shape of `index`.

        Raises:
            IndexError: an index is outside `range(n)`.
        """
        if index.size and (index.min() < 0 or index.max() >= self.n):
            raise IndexError(f"an index is outside range({self.n})")
        values = self._permute_bits(index.astype(np.uint64).ravel())
        outside = np.flatnonzero(values >= self.n)
        while outside.size:
            values[outside] = self._permute_bits(values[outside])
            outside = outside[values[outside] >= self.n]
        return values.astype(np.int64).reshape(index.shape)

    def _permute_bits(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        high, low = values >> self._low_bits, values & self._low_mask
        # Each round XORs one half with a function of the other, which is invertible. Alternating
        # the target instead of swapping the halves allows halves of unequal width.
        for even, odd in zip(self._keys[::2], self._keys[1::2], strict=True):
            low = low ^ (_splitmix64(high ^ even) & self._low_mask)
            high = high ^ (_splitmix64(low ^ odd) & self._high_mask)
        return (high << self._low_bits) | low


def _splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _splitmix64_int(x: int) -> int:
    return int(_splitmix64(np.array([x & MASK64], dtype=np.uint64))[0])
