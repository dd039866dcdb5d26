"""The structure of the server is counted from its imports."""

from __future__ import annotations

from tools.structure import arrows_between, circles_of, structure


def test_arrows_are_those_of_packages() -> None:
    modules = {
        "server.a.one.x": {"server.b.two.y", "server.a.other.z"},
        "server.b.two.y": {"server.b.two.w"},
    }
    assert arrows_between(modules, depth=2) == {"server.a": {"server.b"}, "server.b": set()}
    assert arrows_between(modules, depth=3) == {
        "server.a.one": {"server.b.two", "server.a.other"},
        "server.b.two": set(),
    }


def test_a_circle_is_found_and_what_leads_to_it_is_none() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d2"}, "d2": set[str]()}
    assert circles_of(arrows) == [["b", "c"]]


def test_no_arrow_of_the_server_goes_up_and_no_rooms_form_a_circle() -> None:
    counted = structure()
    assert (counted["arrows_up"], counted["circles_of_rooms"]) == ([], [])
    assert counted["pairs_with_an_arrow"] <= 18
