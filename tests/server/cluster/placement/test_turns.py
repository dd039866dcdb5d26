"""The turns of a round: the placement of a job in its turn with another size."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from server.cluster.placement.decide import Turns, decide
from server.cluster.placement.demand import Offer, QueuedJob
from server.cluster.placement.quotas import Quota
from tests.server.cluster.placement.cluster import job, jobs_strategy, offer, offers_strategy


@given(offers_strategy, jobs_strategy, st.none() | st.integers(0, 20), st.data())
def test_a_job_would_be_placed_exactly_where_a_whole_round_places_it(
    offers: list[Offer], queue: list[QueuedJob], most: int | None, data: st.DataObject
) -> None:
    quotas = {} if most is None else {"default": Quota(held=1, max_slots=most)}
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    for present in Turns(offers, quotas=quotas).take(queue):
        turns = Turns(offers, quotas=quotas)
        for each in turns.take(queue):
            if each.id == present.id:
                break
        for size in sizes:
            tried = replace(present, demand=replace(present.demand, world_size=size, units=()))
            whole = [tried if each.id == present.id else each for each in queue]
            placed = present.id in decide(whole, offers, quotas=quotas).placed
            assert turns.would_place(tried) == placed


def test_free_slots_are_those_that_no_job_ahead_has_or_keeps() -> None:
    turns = Turns([offer("a", 4, 2), offer("b", 2), offer("c", 1)])
    queue = [job("first", 1), job("keeps", 4, nodes=1), job("behind", 1)]
    assert [turns.free_slots for _ in turns.take(queue)] == [5, 4, 0]


def test_the_turns_end_behind_the_last_job_of_a_cut_group() -> None:
    queue = [job("a", 1), job("b", 1), job("c", 2)]
    turns = Turns([offer("n", 8)])
    taken = [each.id for each in turns.take(queue, cut={"b"})]
    assert (taken, set(turns.decisions.placed)) == (["a", "b"], {"a", "b"})


def test_a_cut_ends_no_turn_of_a_job_ahead_of_those_that_are_left_out() -> None:
    queue = [job("a", 1), job("b", 2), job("c", 3), job("d", 4)]
    turns = Turns([offer("n", 16)])
    taken = [each.id for each in turns.take(queue, cut={"a"}, complete=3)]
    assert taken == ["a", "b", "c"]
