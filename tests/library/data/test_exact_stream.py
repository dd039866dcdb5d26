"""Every division into ranks gives the same global batches, from any step on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.data import EpochOrder, ExactSampler, ExactStream, Mixture

BATCHES = st.integers(1, 24)
WORLDS = st.integers(1, 9)
SIZES = st.none() | st.integers(1, 30)


def samplers(world_size: int, length: int, batch: int, *, size: int | None) -> list[ExactSampler]:
    return [
        ExactSampler(length, batch, seed=5, micro_batch_size=size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]


def global_batches(ranks: Sequence[ExactStream], steps: int) -> list[list[int]]:
    """Return the indices of all ranks in each step, in the order of the positions."""
    found = []
    iterators = [iter(rank) for rank in ranks]
    for step in range(ranks[0].step, ranks[0].step + steps):
        taken: dict[int, int] = {}
        for rank, batches in zip(ranks, iterators, strict=True):
            own = [next(batches) for _ in rank.weights]
            samples = [i for batch, w in zip(own, rank.weights, strict=True) if w for i in batch]
            taken.update(zip(rank.positions(step), samples, strict=True))
        found.append([taken[position] for position in sorted(taken)])
    return found


@given(st.integers(1, 40), BATCHES, WORLDS, WORLDS, SIZES, st.integers(0, 6))
def test_a_resume_at_any_step_and_world_size_continues_the_same_sequence(
    length: int, batch: int, before: int, after: int, size: int | None, stop: int
) -> None:
    before, after = min(before, batch), min(after, batch)
    order = EpochOrder(length, seed=5)
    uninterrupted = [[order(s * batch + o) for o in range(batch)] for s in range(stop + 4)]
    ranks = samplers(before, length, batch, size=size)
    trained = global_batches(ranks, stop)
    for rank in ranks:
        rank.step += stop
    resumed = samplers(after, length, batch, size=size)
    for rank in resumed:
        rank.load_state_dict(ranks[0].state_dict())
    assert trained + global_batches(resumed, 4) == uninterrupted


@given(BATCHES, WORLDS, SIZES)
def test_every_rank_has_work_and_as_many_micro_batches_as_the_others(
    batch: int, world_size: int, size: int | None
) -> None:
    world_size = min(world_size, batch)
    ranks = samplers(world_size, 10, batch, size=size)
    assert len({len(rank.weights) for rank in ranks}) == 1
    assert all(rank.weights[0] > 0 for rank in ranks)
    assert sum(sum(rank.weights) for rank in ranks) / world_size == pytest.approx(1)
    largest = max(len(b) for rank in ranks for b in itertools.islice(rank, len(rank.weights)))
    assert largest <= (size or batch)


def test_a_rank_without_samples_left_gets_the_first_of_the_step_with_weight_0() -> None:
    ranks = [
        ExactStream(10, micro_batch_size=2, step=3, rank=rank, world_size=3) for rank in range(3)
    ]
    assert [list(itertools.islice(rank, 2)) for rank in ranks] == [
        [[30, 31], [36, 37]],
        [[32, 33], [38, 39]],
        [[34, 35], [30]],
    ]
    assert [rank.weights for rank in ranks] == [(0.6, 0.6), (0.6, 0.6), (0.6, 0.0)]
    assert [rank.positions(3) for rank in ranks] == [
        (30, 31, 36, 37),
        (32, 33, 38, 39),
        (34, 35),
    ]


def test_a_micro_batch_is_smaller_where_a_rank_would_have_none() -> None:
    ranks = [ExactStream(8, micro_batch_size=4, rank=rank, world_size=3) for rank in range(3)]
    assert [next(iter(rank)) for rank in ranks] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_without_shuffle_the_order_is_that_of_the_data_set() -> None:
    sampler = ExactSampler(5, 3, seed=1, shuffle=False, step=1, steps=4, rank=0, world_size=1)
    assert list(sampler) == [[3, 4, 0], [1, 2, 3], [4, 0, 1]]


def test_a_far_step_begins_at_once() -> None:
    step = 10**15
    sampler = ExactSampler(10**9, 512, seed=1, step=step, rank=0, world_size=8)
    assert next(iter(sampler)) == [EpochOrder(10**9, 1)(step * 512 + o) for o in range(73)]


def test_iteration_leaves_the_state_to_the_training_loop() -> None:
    sampler = ExactSampler(20, 4, seed=1, steps=5, rank=0, world_size=1)
    assert len(sampler) == len(list(sampler)) == 5
    facts = {"length": 20, "seed": 1, "shuffle": 1, "global_batch_size": 4}
    assert sampler.state_dict() == {"kind": "ExactSampler", "position": 0, **facts}
    sampler.step += 3
    assert (sampler.position, len(sampler)) == (12, 2)
    sampler.step += 3
    assert (list(sampler), len(sampler)) == ([], 0)


def test_without_an_end_there_is_no_length() -> None:
    with pytest.raises(TypeError, match=r"ExactSampler without steps=... never ends"):
        len(ExactSampler(5, 5, seed=1, rank=0, world_size=1))


@given(BATCHES, WORLDS, SIZES, st.integers(0, 5), st.integers(0, 60))
def test_items_in_order_are_dealt_as_their_positions(
    batch: int, world_size: int, size: int | None, step: int, extra: int
) -> None:
    world_size = min(world_size, batch)
    complete = extra // batch
    for rank in range(world_size):
        stream = ExactStream(
            batch, micro_batch_size=size, step=step, rank=rank, world_size=world_size
        )
        items = range(stream.position, stream.position + extra)
        expected = list(itertools.islice(stream, complete * len(stream.weights)))
        assert list(stream.deal(iter(items))) == expected


def test_no_item_is_read_before_its_step() -> None:
    source = iter(range(100))
    dealt = ExactStream(10, rank=0, world_size=2).deal(source)
    assert next(dealt) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert next(source) == 10


def test_ranks_come_from_the_environment_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert (ExactStream(8).rank, ExactStream(8).world_size) == (0, 1)
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match=r"only \{'RANK': '2'\} is set; needed: both, or neither"):
        ExactStream(8)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (ExactStream(8).rank, ExactStream(8).world_size) == (2, 4)
    assert ExactStream(8, rank=0, world_size=3).rank == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"global_batch_size": 0}, "global_batch_size=0 must be at least 1"),
        ({"micro_batch_size": 0}, "micro_batch_size=0 must be at least 1"),
        ({"step": -1}, "step=-1 must be at least 0"),
        ({"step": 1.0}, "step=1.0 must be a whole number at least 0"),
        ({"global_batch_size": 8.0}, "global_batch_size=8.0 must be a whole number"),
        ({"steps": "9"}, "steps='9' must be a whole number"),
        ({"rank": 0.0, "world_size": 1}, "rank=0.0 must be a whole number"),
        ({"rank": 3, "world_size": 3}, "rank=3 must be from 0 to 2"),
        ({"rank": 0, "world_size": 9}, "world_size=9 does not fit .*: legal is from 1 to 8"),
        ({"rank": 0, "world_size": 0}, "world_size=0 does not fit .*: legal is from 1 to 8"),
        ({"rank": 0}, "rank=0 and world_size=None: give both, or neither"),
    ],
)
def test_what_is_not_legal_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExactStream(**{"global_batch_size": 8, **arguments})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 21}, "length=20 differs from length=21 of the state"),
        ({"seed": 2}, "seed=1 differs from seed=2 of the state"),
        ({"shuffle": 0}, "shuffle=1 differs from shuffle=0"),
        ({"position": 6}, "position=6 of the state is no multiple of global_batch_size=4"),
        ({"position": -4}, "position=-4 of the state is no multiple"),
        ({"position": 8.0}, "position=8.0 of the state is no multiple"),
        ({"position": True}, "position=True of the state is no multiple"),
        ({"position": None}, "position=None of the state is no multiple"),
        ({"seed": 1.0}, "seed=1 differs from seed=1.0"),
        ({"shuffle": True}, "shuffle=1 differs from shuffle=True"),
        ({"global_batch_size": 2}, "global_batch_size=4 differs from global_batch_size=2"),
        ({"kind": "ExactStream"}, "kind='ExactSampler' differs from kind='ExactStream'"),
        ({"rank": 1}, "'rank' of the state is unknown; legal: position, kind, global_batch_size"),
    ],
)
def test_a_state_of_another_order_is_refused(change: dict[str, Any], message: str) -> None:
    sampler = ExactSampler(20, 4, seed=1, rank=0, world_size=1)
    with pytest.raises(ValueError, match=message):
        sampler.load_state_dict(sampler.state_dict() | change)
    assert sampler.step == 0


def test_whole_numbers_of_numpy_are_stored_as_pythons() -> None:
    number: Any = np.int64
    stream = ExactStream(number(4), step=number(3), rank=number(0), world_size=number(1))
    sampler = ExactSampler(number(20), 4, seed=number(1), rank=0, world_size=1)
    sampler.step += number(2)
    for each in (stream, sampler):
        assert json.loads(json.dumps(each.state_dict())) == each.state_dict()
        each.load_state_dict(each.state_dict())
    assert (stream.step, sampler.step) == (3, 2)


def test_a_state_of_a_former_version_has_no_kind() -> None:
    sampler = ExactSampler(20, 4, seed=1, rank=0, world_size=1, step=3)
    state = {name: value for name, value in sampler.state_dict().items() if name != "kind"}
    resumed = ExactSampler(20, 4, seed=1, rank=0, world_size=1)
    resumed.load_state_dict(state)
    assert resumed.step == 3
    with pytest.raises(ValueError, match="'length' of the state is unknown"):
        ExactStream(4, rank=0, world_size=1).load_state_dict(state)


@pytest.mark.parametrize("name", ["length", "seed", "shuffle", "global_batch_size"])
def test_a_state_without_a_field_is_refused(name: str) -> None:
    sampler = ExactSampler(20, 4, seed=1, rank=0, world_size=1)
    state = {k: v for k, v in sampler.state_dict().items() if k != name}
    with pytest.raises(ValueError, match=f"differs from {name}=None of the state"):
        sampler.load_state_dict(state)


@pytest.mark.parametrize("state", [[], None, 7, "{}"])
def test_what_is_no_state_is_refused(state: Any) -> None:
    sampler = ExactSampler(20, 4, seed=1, rank=0, world_size=1)
    with pytest.raises(ValueError, match=r"legal: what state_dict\(\) returned"):
        sampler.load_state_dict(state)


def test_a_state_of_a_sampler_and_one_of_a_stream_are_not_mistaken() -> None:
    sampler = ExactSampler(20, 4, seed=1, rank=0, world_size=1)
    stream = ExactStream(4, rank=0, world_size=1)
    for one, other in ((sampler, stream), (stream, sampler)):
        with pytest.raises(ValueError, match="kind="):
            one.load_state_dict(other.state_dict())


@pytest.mark.parametrize("seed", [-1, 2**64, 2**70, 1.0, "1", None])
def test_a_seed_that_stands_for_another_one_is_refused(seed: Any) -> None:
    for make in (
        lambda: ExactSampler(20, 4, seed=seed, rank=0, world_size=1),
        lambda: EpochOrder(20, seed),
        lambda: Mixture([20], [1], seed),
    ):
        with pytest.raises(
            ValueError, match=r"^seed=.* must be .*from 0 to 18,446,744,073,709,551,615"
        ):
            make()
