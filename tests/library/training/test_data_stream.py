"""Windows that are left out of the stream: against a stream that is written down."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.protocol.attempt import AttemptSpec
from trainyard.spec.layout import Layout
from trainyard.training.data_stream import advanced, covered, left_out, merged

windows = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda w: (w[0], w[0] + w[1])), max_size=6
)


def written_down(left: list[tuple[int, int]], size: int = 400) -> list[int]:
    return [p for p in range(size) if not any(start <= p < end for start, end in left)]


@given(windows, st.integers(0, 100), st.integers(0, 40))
def test_the_stream_jumps_over_windows(
    left: list[tuple[int, int]], first: int, sequences: int
) -> None:
    stream = written_down(left)
    assert advanced(0, first, left) == stream[first]
    assert advanced(stream[first], sequences, left) == stream[first + sequences]


@given(windows, st.integers(0, 100))
def test_from_within_a_window_one_goes_to_its_end(left: list[tuple[int, int]], place: int) -> None:
    assert advanced(place, 0, left) == next(p for p in written_down(left) if p >= place)


@given(windows)
def test_merged_windows_are_in_order_and_apart(left: list[tuple[int, int]]) -> None:
    joined = merged(left)
    assert written_down(list(joined)) == written_down(left)
    assert all(a[1] < b[0] for a, b in pairwise(joined))


@given(windows, windows, st.integers(0, 60))
def test_courses_are_the_same_while_they_left_out_the_same(
    one: list[tuple[int, int]], other: list[tuple[int, int]], sequences: int
) -> None:
    same = written_down(one)[:sequences] == written_down(other)[:sequences]
    assert same == (left_out(one, sequences=sequences) == left_out(other, sequences=sequences))


def test_a_window_may_be_covered_by_two_that_touch() -> None:
    assert covered((5, 8), [(0, 6), (6, 9)])
    assert not covered((5, 8), [(0, 6), (7, 9)])


@pytest.mark.parametrize("window", [(5, 5), (6, 5), (-1, 5)])
def test_a_window_that_is_none_is_refused(window: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="skip"):
        AttemptSpec(job_id="j", layout=Layout(), skip=(window,))


def test_the_smallest_window_holds_one_position() -> None:
    assert AttemptSpec(job_id="j", layout=Layout(), skip=((5, 6),)).skip == ((5, 6),)


@pytest.mark.parametrize("window", [(5, 5), (6, 5)])
def test_the_refusal_of_a_window_names_its_bounds(window: tuple[int, int]) -> None:
    start, end = window
    with pytest.raises(ValueError, match=re.escape(f"window [{start}, {end}) holds nothing")):
        AttemptSpec(job_id="j", layout=Layout(), skip=(window,))


def test_only_windows_that_the_stream_reached_are_left_out() -> None:
    """Sequences 0 to 4 lie at positions 0 to 4; the sixth jumps over the window at 5."""
    assert left_out([(5, 7)], sequences=5) == ()
    assert left_out([(5, 7)], sequences=6) == ((5, 7),)
    assert left_out([(0, 2)], sequences=1) == ((0, 2),)
    assert left_out([(0, 2)], sequences=0) == ()


def test_a_position_after_a_window_stays() -> None:
    assert advanced(7, 0, [(5, 7)]) == 7
    assert advanced(7, 2, [(5, 7), (8, 9)]) == 10


@pytest.mark.parametrize("window", [(5, 8), (5, 6), (7, 8)])
def test_a_window_covers_itself_and_its_parts(window: tuple[int, int]) -> None:
    assert covered(window, [(5, 8)])


@pytest.mark.parametrize("window", [(4, 8), (5, 9)])
def test_a_window_that_reaches_out_is_not_covered(window: tuple[int, int]) -> None:
    assert not covered(window, [(5, 8)])
