"""Sample at each position of an endless stream, as a pure function of seed and position.

No state is stored, and no table grows with the data. So all positions have the same cost, and a
resume only needs the position. The results are part of the contract with existing runs, so they
never change between versions.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Sequence
from fractions import Fraction

from trainyard.base.whole_numbers import whole_number
from trainyard.training.permutation import MASK64, Permutation, splitmix64

MAX_LENGTH = 2**62 - 1
MAX_PERIOD = 100_000
"""Maximum length of a mixture's pattern, in positions; a table has one entry per position."""


def fold_seed(seed: int, *numbers: int) -> int:
    """Return a seed for a random generator, from 0 to 2**63 - 1, derived from a seed and numbers.

    For example, use `fold_seed(seed, position)` for the augmentation of a sample, or
    `fold_seed(seed, step, sample)` for dropout. Random numbers then depend neither on the ranks,
    nor on the workers of a loader, nor on earlier random numbers. `torch.Generator.manual_seed`,
    `numpy.random.default_rng` and `random.Random` accept the seed. The order of `numbers`
    matters; each number is taken modulo 2**64.
    """
    folded = splitmix64(seed & MASK64)
    for number in numbers:
        folded = splitmix64((folded + number) & MASK64)
    # Only use the upper 63 bits, so that the seed fits into an int64 tensor.
    return folded >> 1


class EpochOrder:
    """Sample at each position: every epoch contains each sample once, in an order of its own.

    Position p is entry `p % length` in the permutation of epoch `p // length`. The built-in
    trainer uses this order.

    Raises:
        ValueError: `length` is not from 1 to 2**62 - 1, or `seed` is not from 0 to 2**64 - 1.
    """

    def __init__(self, length: int, seed: int, *, shuffle: bool = True) -> None:
        # Other seeds are illegal, because they would repeat an order: seeds count modulo 2**64.
        length = whole_number("length", length, least=1, most=MAX_LENGTH)
        seed = whole_number("seed", seed, least=0, most=MASK64)
        self.length = length
        self._seed = seed
        self._shuffle = shuffle
        self._recent = Permutation(length, seed, 0)

    def __call__(self, position: int) -> int:
        """Return the index of the sample, from 0 to `length - 1`.

        Raises:
            ValueError: the position is negative.
        """
        epoch, index = divmod(_legal(position), self.length)
        if not self._shuffle:
            return index
        permutation = self._recent
        if permutation.epoch != epoch:
            # Replace the whole object, so that several threads may use this order.
            self._recent = permutation = Permutation(self.length, self._seed, epoch)
        return permutation(index)


class Mixture:
    """Several data sets in fixed proportions: data set and sample at each position.

    After any number of positions, each data set has received its share of the positions, rounded up
    or down. Each data set has its own epochs, so a small data set may repeat before a large one has
    ended.

    The pattern of data sets has a period, which is the sum of the smallest integer weights: 10
    positions for weights 7, 2 and 1. In a period of W positions, sample number a (from 0) of a
    data set with weight w lies between positions floor(a W / w) and ceil((a + 1) W / w) - 1. Such
    a schedule exists for all weights (Tijdeman, "The Chairman Assignment Problem", 1980), and
    earliest deadline first finds one.

    Args:
        lengths: number of samples in each data set.
        weights: weight of each data set; the sum may differ from 1. A float counts as it is
            written, so 0.1 is exactly a tenth.
        seed: seed of the orders; the order of a data set follows from it and the data set's number.
        shuffle: whether to permute the epochs of each data set; if False, its own order is kept.

    Raises:
        ValueError: the numbers of lengths and weights differ or are 0, a length or weight is not
            positive, the seed is not from 0 to 2**64 - 1, or the pattern has more than
            `MAX_PERIOD` positions.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        weights: Sequence[int | float | Fraction],
        seed: int,
        *,
        shuffle: bool = True,
    ) -> None:
        if len(lengths) != len(weights) or not lengths:
            raise ValueError(
                f"lengths has {len(lengths)} and weights {len(weights)} entries; "
                "needed: one of each for every data set, and at least one data set"
            )
        whole_seed = whole_number("seed", seed, least=0, most=MASK64)
        self._orders = [
            EpochOrder(length, fold_seed(whole_seed, source), shuffle=shuffle)
            for source, length in enumerate(lengths)
        ]
        self._parts = _whole_parts(weights)
        self._sources, self._takes = _pattern(self._parts)

    def __call__(self, position: int) -> tuple[int, int]:
        """Return the number of the data set, and the index of the sample in the data set.

        Raises:
            ValueError: the position is negative.
        """
        period, place = divmod(_legal(position), len(self._sources))
        source = self._sources[place]
        taken = period * self._parts[source] + self._takes[place]
        return source, self._orders[source](taken)


def _legal(position: int) -> int:
    if position < 0:
        raise ValueError(f"position={position} must not be negative")
    return position


def _whole_parts(weights: Sequence[int | float | Fraction]) -> list[int]:
    """Return the smallest integers with the same proportions as the weights."""
    fractions = [_as_written(weight) for weight in weights]
    common = math.lcm(*(fraction.denominator for fraction in fractions))
    parts = [int(fraction * common) for fraction in fractions]
    divisor = math.gcd(*parts)
    parts = [part // divisor for part in parts]
    if sum(parts) > MAX_PERIOD:
        raise ValueError(
            f"weights={list(weights)} have {sum(parts)} parts in all; legal: up to {MAX_PERIOD}, "
            "such as weights rounded to four digits, or small whole numbers"
        )
    return parts


def _as_written(weight: int | float | Fraction) -> Fraction:
    if not 0 < weight < math.inf:
        raise ValueError(f"weight {weight} must be positive and finite")
    # Use the shortest text of a float, because the float 0.1 is not exactly a tenth.
    return Fraction(str(float(weight))) if isinstance(weight, float) else Fraction(weight)


def _pattern(parts: Sequence[int]) -> tuple[array[int], array[int]]:
    """For each position of a period, return the data set and the count of its earlier samples."""
    period = sum(parts)
    sources, takes = array("I"), array("I")
    released = [(0, source, 0) for source in range(len(parts))]  # position, data set, take
    ready: list[tuple[int, int, int]] = []  # last legal position, data set, take
    for position in range(period):
        while released and released[0][0] <= position:
            _, source, take = heapq.heappop(released)
            deadline = -(-(take + 1) * period // parts[source]) - 1
            heapq.heappush(ready, (deadline, source, take))
        _, source, take = heapq.heappop(ready)
        sources.append(source)
        takes.append(take)
        heapq.heappush(released, ((take + 1) * period // parts[source], source, take + 1))
    return sources, takes
