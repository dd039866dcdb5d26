"""The ledger as a function: known lives of a job, and exact sums for any records."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from server.telemetry.goodput.ledger import Ledger, Mark, Training, ledger_of
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.goodput import JOB_CATEGORIES, TimeCategory
from trainyard.protocol.states import AttemptOutcome

TRAINED = Training(
    began=2_000,
    recorded=12_000,
    productive=6_000,
    lost=1_000,
    compilation=500,
    data_wait=300,
    save_stall=700,
    validation=900,
)
"""Ten seconds of steps, of which 600 ms are unexplained."""


def spent(ledger: Ledger) -> dict[str, int]:
    return {category.value: time for category, time in ledger.spent.items() if time}


def ended(at: int, attempt: int, outcome: AttemptOutcome, *, preempted: bool = False) -> Mark:
    return Mark(at, EventKind.ATTEMPT_ENDED, attempt, outcome=outcome, preempted=preempted)


def test_a_run_without_faults() -> None:
    marks = [
        Mark(1_000, EventKind.PLACED, 1),
        ended(15_000, 1, AttemptOutcome.SUCCEEDED),
        Mark(15_000, EventKind.JOB_ENDED),
    ]
    ledger = ledger_of(marks, {1: TRAINED}, start=0, end=15_000)
    assert spent(ledger) == {
        "queued": 1_000,
        "startup": 1_000,
        "productive": 6_000,
        "lost": 1_000,
        "compilation": 500,
        "data_wait": 300,
        "save_stall": 700,
        "validation": 900,
        "other": 600,
        "ending": 3_000,
    }
    assert (ledger.scheduled, ledger.failures) == (14_000, 0)


def test_the_time_of_steps_without_their_times_is_no_start_up() -> None:
    marks = [
        Mark(1_000, EventKind.PLACED, 1),
        Mark(9_000, EventKind.STOP_REQUESTED, 1),
        ended(11_000, 1, AttemptOutcome.STOPPED),
        Mark(11_000, EventKind.JOB_ENDED),
    ]
    found = ledger_of(marks, {}, start=0, end=11_000, untimed={1})
    assert spent(found) == {"queued": 1_000, "other": 8_000, "ending": 2_000}
    assert spent(ledger_of(marks, {}, start=0, end=11_000))["startup"] == 8_000


def test_a_retry_waits_for_its_backoff_and_then_for_slots() -> None:
    marks = [
        Mark(0, EventKind.PLACED, 1),
        ended(15_000, 1, AttemptOutcome.FAILED),
        Mark(15_000, EventKind.QUEUED, not_before=20_000),
        Mark(27_000, EventKind.PLACED, 2),
        ended(30_000, 2, AttemptOutcome.FAILED),
        Mark(30_000, EventKind.JOB_ENDED),
        Mark(40_000, EventKind.RESUME_REQUESTED),
        Mark(41_000, EventKind.PLACED, 3),
    ]
    ledger = ledger_of(marks, {1: TRAINED}, start=0, end=42_000)
    found = spent(ledger)
    assert found["backoff"] == 5_000
    assert found["requeued"] == 7_000 + 1_000
    assert found["idle_after_failure"] == 10_000
    assert found["startup"] == 2_000 + 3_000 + 1_000
    assert found["other"] == 600 + 3_000, "after the last record of a failed attempt"
    assert ledger.failures == 2


def test_a_preemption_is_no_failure_and_a_stop_is_a_pause() -> None:
    marks = [
        Mark(0, EventKind.PLACED, 1),
        Mark(11_000, EventKind.STOP_REQUESTED, 1),
        Mark(12_000, EventKind.STOP_AGREED, 1),
        ended(15_000, 1, AttemptOutcome.FAILED, preempted=True),
        Mark(15_000, EventKind.QUEUED),
        Mark(16_000, EventKind.PLACED, 2),
        Mark(17_000, EventKind.STOP_REQUESTED, 2),
        ended(18_000, 2, AttemptOutcome.STOPPED),
        Mark(18_000, EventKind.JOB_ENDED),
    ]
    ledger = ledger_of(marks, {1: TRAINED}, start=0, end=20_000)
    found = spent(ledger)
    assert ledger.failures == 0
    assert found["ending"] == 3_000 + 1_000
    assert found["startup"] == 2_000 + 1_000
    assert (found["requeued"], found["paused"]) == (1_000, 2_000)


def test_a_silence_counts_only_where_no_step_is_recorded() -> None:
    marks = [
        Mark(0, EventKind.PLACED, 1),
        Mark(5_000, EventKind.UNREACHABLE, 1, "node-1"),
        Mark(8_000, EventKind.REACHABLE, 1, "node-1"),
        Mark(14_000, EventKind.UNREACHABLE, 1, "node-1"),
        Mark(15_000, EventKind.UNREACHABLE, 1, "node-2"),
        Mark(16_000, EventKind.REACHABLE, 1, "node-1"),
        Mark(20_000, EventKind.NODE_ENDED, 1, "node-2"),
        ended(22_000, 1, AttemptOutcome.FAILED),
    ]
    found = spent(ledger_of(marks, {1: TRAINED}, start=0, end=22_000))
    assert found["unreachable"] == 6_000
    assert found["other"] == 600 + 4_000


def test_a_cancel_ends_what_is_recorded() -> None:
    marks = [
        Mark(0, EventKind.PLACED, 1),
        Mark(13_000, EventKind.CANCEL_REQUESTED, 1),
        ended(13_400, 1, AttemptOutcome.CANCELLED),
    ]
    found = spent(ledger_of(marks, {1: TRAINED}, start=0, end=13_400))
    assert (found["other"], found["ending"]) == (600 + 1_000, 400)


def test_the_clock_of_a_node_may_differ_from_the_servers() -> None:
    marks = [Mark(0, EventKind.PLACED, 1), ended(15_000, 1, AttemptOutcome.SUCCEEDED)]
    for shift in (-7_200_000, 7_200_000):
        moved = replace(TRAINED, began=TRAINED.began + shift, recorded=TRAINED.recorded + shift)
        found = spent(ledger_of(marks, {1: moved}, start=0, end=15_000))
        assert found["productive"] == TRAINED.productive
        assert found["other"] == 600
        assert found.get("startup", 0) + found.get("ending", 0) == 5_000


TIMES = st.integers(-100_000, 100_000)
MARKS = st.lists(
    st.builds(
        Mark,
        at=TIMES,
        kind=st.sampled_from(list(EventKind)),
        attempt=st.none() | st.integers(1, 3),
        node=st.none() | st.sampled_from(["a", "b"]),
        not_before=st.none() | TIMES,
        outcome=st.none() | st.sampled_from(AttemptOutcome),
        preempted=st.booleans(),
    ),
    max_size=25,
)
DURATION = st.integers(0, 50_000)
TRAININGS = st.dictionaries(
    st.integers(1, 3),
    st.builds(
        Training,
        began=TIMES,
        recorded=TIMES,
        productive=DURATION,
        lost=DURATION,
        compilation=DURATION,
        data_wait=DURATION,
        save_stall=DURATION,
        validation=DURATION,
    ),
)


@given(marks=MARKS, trainings=TRAININGS, start=TIMES, end=TIMES)
def test_any_events_sum_to_the_wall_time(
    marks: list[Mark], trainings: dict[int, Training], start: int, end: int
) -> None:
    """Events in any order, doubled, missing, and with clocks set back or ahead."""
    ledger = ledger_of(marks, trainings, start=start, end=end)
    assert sum(ledger.spent.values()) == max(end - start, 0)
    assert min(ledger.spent.values()) >= 0
    assert set(ledger.spent) == set(JOB_CATEGORIES)
    assert 0 <= ledger.scheduled <= max(end - start, 0)


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[Mark], dict[int, Training], int]:
    """Lives of a job in order: attempts, faults, retries, stops, resumes."""
    now = 0
    marks, trainings = [], {}
    for number in range(1, draw(st.integers(0, 4)) + 1):
        now += draw(DURATION)
        placed = now
        marks.append(Mark(placed, EventKind.PLACED, number))
        length = draw(DURATION)
        parts = [draw(st.integers(0, length // 8)) for _ in range(6)]
        if draw(st.booleans()):
            trainings[number] = Training(placed + parts[0], placed + length, *parts)
        now += length + draw(DURATION)
        outcome = draw(st.sampled_from(AttemptOutcome))
        marks.append(ended(now, number, outcome))
        again = EventKind.QUEUED if draw(st.booleans()) else EventKind.RESUME_REQUESTED
        if again == EventKind.RESUME_REQUESTED:
            now += draw(DURATION)
        marks.append(Mark(now, again, not_before=now + draw(DURATION)))
    return marks, trainings, now + draw(DURATION)


@given(lives())
def test_a_recorded_time_has_its_category_whole(
    life: tuple[list[Mark], dict[int, Training], int],
) -> None:
    marks, trainings, end = life
    ledger = ledger_of(marks, trainings, start=0, end=end)
    assert sum(ledger.spent.values()) == end
    for category in ("productive", "lost", "compilation", "data_wait", "save_stall"):
        recorded = sum(getattr(training, category) for training in trainings.values())
        assert ledger.spent[TimeCategory(category)] == recorded
