"""Retries: pauses, jitter and the deadline, on a clock of the test."""

from __future__ import annotations

import itertools

import pytest

from trainyard.base.backoff import Backoff, Retries, retry

EVEN = Backoff(first=1.0, longest=8.0, jitter=0.0)


class FakeClock:
    """A clock that moves only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Flaky:
    """A call that fails a number of times, each time with the next number."""

    def __init__(self, *, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionError(f"try {self.calls}")
        return "done"


def is_lost(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


def test_pauses_double_up_to_the_longest() -> None:
    assert list(itertools.islice(EVEN.pauses(), 6)) == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_jitter_takes_off_at_most_its_fraction() -> None:
    pauses = list(itertools.islice(Backoff(first=4.0, longest=4.0).pauses(), 200))
    assert all(3.0 <= pause <= 4.0 for pause in pauses)
    assert len(set(pauses)) > 100


def test_a_call_is_repeated_until_it_succeeds() -> None:
    clock, call = FakeClock(), Flaky(failures=3)
    retries = Retries(EVEN, clock=clock)
    assert retry(call, when=is_lost, retries=retries, sleep=clock.sleep) == "done"
    assert clock.slept == [1.0, 2.0, 4.0]
    assert (retries.failures, retries.failing_since) == (0, None)


def test_the_last_try_is_made_at_the_deadline() -> None:
    clock, call = FakeClock(), Flaky(failures=99)
    retries = Retries(EVEN, for_seconds=5.0, clock=clock)
    with pytest.raises(ConnectionError, match="try 4"):
        retry(call, when=is_lost, retries=retries, sleep=clock.sleep)
    assert clock.slept == [1.0, 2.0, 2.0]
    assert clock.now == retries.deadline == 105.0


def test_without_time_the_first_failure_is_the_last() -> None:
    clock, call = FakeClock(), Flaky(failures=1)
    with pytest.raises(ConnectionError, match="try 1"):
        retry(call, when=is_lost, retries=Retries(EVEN, for_seconds=0.0), sleep=clock.sleep)
    assert (call.calls, clock.slept) == (1, [])


def test_the_number_of_tries_has_a_limit() -> None:
    clock, call = FakeClock(), Flaky(failures=99)
    with pytest.raises(ConnectionError, match="try 3"):
        retry(call, when=is_lost, retries=Retries(EVEN, tries=3), sleep=clock.sleep)
    assert clock.slept == [1.0, 2.0]


def test_an_error_of_another_kind_is_raised_at_once() -> None:
    clock, call = FakeClock(), Flaky(failures=1)
    with pytest.raises(ConnectionError):
        retry(call, when=lambda error: False, retries=Retries(EVEN), sleep=clock.sleep)
    assert clock.slept == []


def test_a_success_begins_anew_with_the_first_pause_and_the_whole_time() -> None:
    clock = FakeClock()
    retries = Retries(EVEN, for_seconds=10.0, clock=clock)
    assert (retries.failed(), retries.failed()) == (1.0, 2.0)
    assert (retries.failures, retries.next_at) == (2, 102.0)
    clock.now += 9.0
    retries.succeeded()
    assert retries.failed() == 1.0
    assert (retries.failures, retries.failing_since, retries.deadline) == (1, 109.0, 119.0)


def test_time_ends_though_the_pauses_do_not() -> None:
    clock = FakeClock()
    retries = Retries(EVEN, for_seconds=10.0, clock=clock)
    retries.failed()
    clock.now += 10.0
    assert retries.failed() is None
