"""Digests notice another token, another position, another order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.digest import in_global_order, sequence_hash, step_digest
from trainyard.training.batch_partition import BatchPartition


def test_the_digests_never_change_between_versions() -> None:
    # Digests of older attempts are compared with new ones.
    value = sequence_hash(5, np.arange(4))
    assert value == -7310374859975018928
    assert step_digest([value, -1]) == "dc9c0b6d95673e266cc163beffe40ade"


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20), st.integers(0, 2**50), st.data())
def test_a_hash_notices_one_other_token_and_another_position(
    tokens: list[int], position: int, data: st.DataObject
) -> None:
    original = np.array(tokens)
    changed = original.copy()
    changed[data.draw(st.integers(0, len(tokens) - 1))] += data.draw(st.integers(1, 9))
    value = sequence_hash(position, original)
    assert -(2**63) <= value < 2**63
    assert value != sequence_hash(position, changed)
    assert value != sequence_hash(position + 1, original)


def test_a_hash_reads_the_tokens_and_not_their_layout_in_memory() -> None:
    wide = np.arange(12).reshape(3, 4)
    assert sequence_hash(0, wide[:, 1]) == sequence_hash(0, np.array([1, 5, 9]))
    assert sequence_hash(0, wide[0].astype(np.int32)) == sequence_hash(0, wide[0])


def test_a_step_digest_notices_order_and_count() -> None:
    digests = {step_digest(h) for h in ([1, 2, 3], [1, 3, 2], [1, 2], [1, 2, 3, 0], [])}
    assert len(digests) == 5


@given(st.integers(1, 40), st.integers(1, 9), st.data())
def test_hashes_of_all_ranks_come_back_in_global_order(
    global_batch: int, micro_batch: int, data: st.DataObject
) -> None:
    dp = data.draw(st.integers(1, -(-global_batch // micro_batch)))
    partition = BatchPartition(global_batch, micro_batch, dp)
    padding = [-7] * data.draw(st.integers(0, 3))
    by_rank = [
        [offset for dealt in partition.for_rank(rank) for offset in dealt] + padding
        for rank in range(dp)
    ]
    assert in_global_order(partition, by_rank) == list(range(global_batch))


def test_a_missing_hash_is_noticed() -> None:
    with pytest.raises(ValueError, match="shorter"):
        in_global_order(BatchPartition(4, 1, 2), [[0, 2], [1]])
