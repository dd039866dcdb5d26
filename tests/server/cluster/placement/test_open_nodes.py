"""Incremental updates of open nodes after each start equal a scan of every node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from server.cluster.placement.demand import Offer
from server.cluster.placement.open_nodes import MAX_FOLLOWED, OpenNodes
from tests.server.cluster.placement.cluster import offer


def found_anew(span: Sequence[str], left: dict[str, Offer], kept: set[str]) -> list[Offer]:
    found = [left[name] for name in span if left[name].free and name not in kept]
    return sorted(found, key=lambda each: (len(each.free), each.node))


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 11), st.integers(1, 8), st.booleans()), max_size=30),
    st.sets(st.integers(0, 11), max_size=3),
    st.integers(0, 12),
)
def test_open_nodes_follow_starts(
    free: list[int], starts: list[tuple[int, int, bool]], kept_numbers: set[int], cut: int
) -> None:
    names = [f"node-{number:02}" for number in range(len(free))]
    left = {name: offer(name, 8, count) for name, count in zip(names, free, strict=True)}
    spans = [names[:cut], names[cut:]]
    kept = {f"node-{number:02}" for number in kept_numbers}
    changes: list[tuple[Offer, Offer]] = []
    followed = OpenNodes(spans, left=left, kept=kept, changes=changes)
    for number, count, is_looked_at in starts:
        before = left[names[number % len(names)]]
        if not before.free:
            continue
        after = left[before.node] = replace(before, free=before.free[count:])
        changes.append((before, after))
        if is_looked_at:
            assert followed.groups() == [found_anew(span, left, kept) for span in spans]
    assert followed.groups() == [found_anew(span, left, kept) for span in spans]


def test_nodes_are_sorted_anew_after_many_starts() -> None:
    left = {"a": offer("a", MAX_FOLLOWED + 2), "b": offer("b", 1)}
    changes: list[tuple[Offer, Offer]] = []
    followed = OpenNodes([["a", "b"]], left=left, kept=set(), changes=changes)
    assert [each.node for each in followed.groups()[0]] == ["b", "a"]
    for _ in range(MAX_FOLLOWED + 2):
        before = left["a"]
        left["a"] = replace(before, free=before.free[1:])
        changes.append((before, left["a"]))
    assert followed.groups() == [[left["b"]]]
