"""Order of the samples in an epoch: a stateless bijection, and the hash that makes its keys.

The code works on Python's integers and on `uint64` arrays of numpy, so that the trainer can permute
whole batches. No constant may ever change, because the orders of existing runs depend on them.
"""

from __future__ import annotations

from typing import Any, TypeVar

Words = TypeVar("Words", bound=Any)
"""An integer below 2**64, or a numpy array of `uint64`."""

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: the increment of splitmix64
ROUNDS = 8


def splitmix64(x: Words) -> Words:
    """Return a 64-bit hash of each number; the hash is a bijection on the numbers below 2**64.

    Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
    """
    x = (x + GOLDEN) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    mixed: Words = x ^ (x >> 31)
    return mixed


class Permutation:
    """A permutation of `range(n)`, as a pure function of seed and epoch.

    A Feistel network with splitmix64 as its round function permutes the numbers with
    `(n - 1).bit_length()` bits. A result of n or more is permuted again until it is below n
    (cycle walking, fewer than two permutations on average). Each entry takes constant time and
    memory.

    Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002).

    Raises:
        ValueError: n is not from 1 to 2**62 - 1.
    """

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        if not 1 <= n < 1 << 62:
            raise ValueError(f"n={n} must be positive and below 2**62")
        self.n = n
        self.epoch = epoch
        bits = (n - 1).bit_length()
        self._low_bits = bits - bits // 2
        self._low_mask = (1 << self._low_bits) - 1
        self._high_mask = (1 << (bits // 2)) - 1
        base = splitmix64((splitmix64(seed & MASK64) + epoch) & MASK64)
        self._keys = [splitmix64((base + r * GOLDEN) & MASK64) for r in range(ROUNDS)]

    def __call__(self, index: int) -> int:
        """Return the entry at an index.

        Raises:
            IndexError: the index is outside `range(n)`.
        """
        if not 0 <= index < self.n:
            raise IndexError(f"index {index} is outside range({self.n})")
        value = self.permute_bits(index)
        while value >= self.n:
            value = self.permute_bits(value)
        return value

    def permute_bits(self, values: Words) -> Words:
        """Return the output of the Feistel network for each number; the output may be n or more."""
        high, low = values >> self._low_bits, values & self._low_mask
        # Each round XORs one half with a function of the other half, which is invertible. The
        # target alternates instead of a swap of the halves, so that the halves may differ in width.
        for even, odd in zip(self._keys[::2], self._keys[1::2], strict=True):
            low = low ^ (splitmix64(high ^ even) & self._low_mask)
            high = high ^ (splitmix64(low ^ odd) & self._high_mask)
        permuted: Words = (high << self._low_bits) | low
        return permuted
