"""The counters of a manifest: those of any training run agree; inconsistent ones are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.manifests import make_manifest
from trainyard.protocol.manifest import DataState, Manifest, TrainState
from trainyard.spec.job import parse_job_spec
from trainyard.training.data_stream import advanced, merged

SPEC = parse_job_spec({"training": {"global_batch_size": 4, "micro_batch_size": 1, "seq_len": 8}})
DIGEST = "d" * 32


def state(
    step: int,
    consumed: int,
    *,
    position: int | None = None,
    tokens: int | None = None,
    skipped: tuple[tuple[int, int], ...] = (),
) -> TrainState:
    return TrainState(
        step=step,
        tokens=consumed * 8 if tokens is None else tokens,
        data=DataState(
            position=consumed if position is None else position,
            consumed=consumed,
            skipped=skipped,
            dataset_digest=DIGEST,
        ),
    )


def manifest(train_state: TrainState, start: TrainState | None, *, old: bool = False) -> Manifest:
    spec = None if old else SPEC
    return make_manifest("job", 1, train_state, start=start, spec=spec)


def test_counters_of_a_training_agree() -> None:
    assert manifest(state(3, 12), state(0, 0)).disagreement is None
    assert manifest(state(0, 0), state(0, 0)).disagreement is None
    # A fork with another batch that loaded the counters but not the data.
    forked = state(10, 0, tokens=999)
    assert manifest(state(12, 8, tokens=999 + 64), forked).disagreement is None


@pytest.mark.parametrize(
    ("counters", "words"),
    [
        (state(3, 12, position=13), "position 13, but 12 consumed sequences and 0 skipped"),
        (state(3, 12, skipped=((4, 6),)), "lead to 14"),
        (state(4, 12), "step 4 with 12 sequences and 96 tokens, but 4 steps"),
        (state(3, 13), "there must be 12 and 96"),
        (state(3, 12, tokens=97), "12 sequences and 97 tokens"),
    ],
)
def test_others_are_named(counters: TrainState, words: str) -> None:
    found = manifest(counters, state(0, 0)).disagreement
    assert found is not None
    assert words in found


def test_steps_before_the_start_are_named() -> None:
    found = manifest(state(1, 4), state(2, 8)).disagreement
    assert found is not None
    assert "-1 steps after the start" in found


def test_of_older_manifests_only_the_position_is_known() -> None:
    assert manifest(state(3, 13), None).disagreement is None
    assert manifest(state(3, 13), state(0, 0), old=True).disagreement is None
    assert manifest(state(3, 13, position=12), None).disagreement is not None


@given(
    legs=st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=5
    )
)
def test_windows_that_are_left_out_on_the_way_always_agree(
    legs: list[tuple[int, int, int]],
) -> None:
    position, consumed = 0, 0
    windows: tuple[tuple[int, int], ...] = ()
    for steps, ahead, length in legs:
        windows = merged([*windows, (position + ahead, position + ahead + length)])
        position = advanced(position, 0, windows)
        for _ in range(steps):
            position, consumed = advanced(position, 4, windows), consumed + 4
        found = manifest(
            state(consumed // 4, consumed, position=position, skipped=windows), state(0, 0)
        )
        assert found.disagreement is None
