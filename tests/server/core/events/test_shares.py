"""Shares of a process's capacity: a token that takes all gets its part, the others theirs."""

from __future__ import annotations

import pytest

from server.core.events.shares import Holder, NoPlaceError, ShareLimits, Waits, gives_way

LIMITS = ShareLimits(total=8, per_person=4, per_address=6)


def places(*tokens: str, address: str | None = None) -> list[tuple[Holder, object]]:
    return [(Holder(token, address), f"{token}-{n}") for n, token in enumerate(tokens)]


def test_the_oldest_of_the_same_token_gives_way_to_its_next() -> None:
    held = places("b", "a", "a", "a")
    assert gives_way(held, Holder("a"), LIMITS) is None
    assert gives_way([*held, *places("a")], Holder("a"), LIMITS) == "a-1"


def test_where_all_are_held_the_oldest_of_the_heaviest_token_gives_way() -> None:
    held = places("c", "a", "a", "a", "a", "b", "b", "c")
    assert gives_way(held, Holder("d"), LIMITS) == "a-1"
    assert gives_way(held, Holder("b"), LIMITS) == "a-1"
    even = places("a", "a", "b", "b", "c", "c", "d", "d")
    assert gives_way(even, Holder("b"), LIMITS) == "b-2", "no token loses to an equal one"
    assert gives_way(even, Holder("e"), LIMITS) == "a-0"


def test_a_newcomer_is_refused_only_where_each_has_its_part() -> None:
    with pytest.raises(NoPlaceError):
        gives_way(places(*"abcdefgh"), Holder("i"), LIMITS)


def test_an_address_has_its_part_and_a_proxy_has_none() -> None:
    near = places("a", "a", "b", "b", "c", "c", address="192.0.2.1")
    assert gives_way(near, Holder("d", "192.0.2.1"), LIMITS) == "a-0"
    assert gives_way(near, Holder("d", "192.0.2.2"), LIMITS) is None
    assert gives_way(places("a", "a", "b", "b", "c", "c"), Holder("d", None), LIMITS) is None


def test_a_holder_waits_for_few_answers_at_once() -> None:
    waits = Waits(2)
    with waits.turn("a") as first, waits.turn("a") as second, waits.turn("a") as third:
        assert (first, second, third) == (True, True, False)
        with waits.turn("b") as other:
            assert other
    with waits.turn("a") as again:
        assert again
    assert not waits._counted
