"""The digest of a step: equal for any division into ranks, different for any other order."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainyard.data import ExactSampler, merge_digests, order_digest

IDS = st.lists(st.one_of(st.integers(), st.text(max_size=5), st.binary(max_size=5)), min_size=1)


def test_digests_never_change_between_versions() -> None:
    digest = order_digest([4, 5, 6, 2**62], [10, "name", b"\x00\xff", -3])
    # The sum of the outputs of `b2sum -l 128` for 4:i10, 5:sname and the other two.
    assert digest == "c55dd98647a7311126e2d83cd229fbc0"
    assert order_digest([], []) == "0" * 32


@given(IDS, st.integers(0, 2**60), st.data())
def test_any_division_has_the_digest_of_the_whole(
    ids: list[int | str | bytes], first: int, data: st.DataObject
) -> None:
    positions = range(first, first + len(ids))
    rank_of = data.draw(st.lists(st.integers(0, 3), min_size=len(ids), max_size=len(ids)))
    shares = [
        order_digest(
            [p for p, owner in zip(positions, rank_of, strict=True) if owner == rank],
            [name for name, owner in zip(ids, rank_of, strict=True) if owner == rank],
        )
        for rank in range(4)
    ]
    assert merge_digests(shares) == order_digest(positions, ids)


def test_the_digest_of_a_step_is_the_same_at_any_world_size() -> None:
    digests = set()
    for world_size in range(1, 8):
        samplers = [
            ExactSampler(9, 7, seed=1, rank=rank, world_size=world_size, step=4, steps=5)
            for rank in range(world_size)
        ]
        consumed = [
            [i for batch, weight in zip(s, s.weights, strict=True) if weight for i in batch]
            for s in samplers
        ]
        digests.add(
            merge_digests(
                order_digest(s.positions(4), ids) for s, ids in zip(samplers, consumed, strict=True)
            )
        )
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("positions", "ids"),
    [
        ([0, 1, 2], ["a", "c", "b"]),  # another order
        ([0, 1, 3], ["a", "b", "c"]),  # another position
        ([0, 1], ["a", "b"]),  # one missing
        ([0, 1, 2, 2], ["a", "b", "c", "c"]),  # one twice
        ([0, 1, 2], ["a", "b", b"c"]),  # another type
    ],
)
def test_any_other_sequence_has_another_digest(
    positions: list[int], ids: list[str | bytes]
) -> None:
    assert order_digest(positions, ids) != order_digest([0, 1, 2], ["a", "b", "c"])
    assert order_digest([0], ["1"]) != order_digest([0], [1])


def test_numbers_of_numpy_and_torch_are_whole_numbers() -> None:
    expected = order_digest([0, 1], [5, 6])
    assert order_digest([0, 1], np.array([5, 6])) == expected
    assert order_digest([0, 1], torch.tensor([5, 6])) == expected


def test_ids_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        order_digest([0, 1], [5])
    with pytest.raises(TypeError):
        order_digest([0], [1.5])  # type: ignore[list-item]


@pytest.mark.parametrize("digest", ["", "ab", "0" * 31 + "G", "-" + "0" * 31, "0" * 33])
def test_what_is_no_digest_is_refused(digest: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{digest!r} is not 32 hexadecimal digits")):
        merge_digests(["0" * 32, digest])
