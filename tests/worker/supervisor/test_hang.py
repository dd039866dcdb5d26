"""Hangs: none in a slow phase within its limit, and each names the positions of the ranks."""

from __future__ import annotations

import time

import pytest

from tests.worker.conftest import LONG, Place, wait_for
from tests.worker.launchers.process_launcher import TORCHRUN
from trainyard.run.directory import Phase
from trainyard.run.record_files import replace_record
from trainyard.run.records import Heartbeat, RankPosition, RankRange
from worker.node.node_store import WorkerRun
from worker.supervisor.hang import PHASE_SECONDS, SUSPECTED_SHARE, HangWatch

LIMIT = 100.0
HANG_SECONDS = 8.0
"""Limit of the real trainer: on a busy machine its first steps take seconds."""


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Beats:
    """Heartbeats of a trainer, and a watch on them."""

    def __init__(self, run: WorkerRun) -> None:
        self._run = run
        self.clock = Clock()
        self.watch = HangWatch(run.heartbeat, hang_seconds=LIMIT, clock=self.clock)

    def beat(self, phase: Phase, step: int = 0) -> None:
        beat = Heartbeat(phase=phase, step=step, time=self.clock.now)
        replace_record(self._run.heartbeat, beat)
        assert self.watch.silence() is None

    def after(self, seconds: float) -> str | None:
        self.clock.now += seconds
        return self.watch.silence()


@pytest.fixture
def beats(run: WorkerRun) -> Beats:
    return Beats(run)


@pytest.mark.parametrize("phase", [p for p in Phase if PHASE_SECONDS[p] > LIMIT])
def test_a_slow_phase_is_neither_suspected_nor_a_hang(beats: Beats, phase: Phase) -> None:
    """A long save, a compilation, a validation."""
    beats.beat(phase)
    assert beats.after(SUSPECTED_SHARE * PHASE_SECONDS[phase]) is None
    assert not beats.watch.suspected
    assert beats.after((1 - SUSPECTED_SHARE) * PHASE_SECONDS[phase]) is None
    assert beats.after(1.0) is not None


def test_training_is_suspected_before_it_is_a_hang(beats: Beats) -> None:
    beats.beat(Phase.TRAINING, step=3)
    suspected = []
    for seconds in (SUSPECTED_SHARE * LIMIT, 1.0):
        assert beats.after(seconds) is None
        suspected.append(beats.watch.suspected)
    assert suspected == [False, True]
    assert beats.after(LIMIT) is not None


def test_a_silence_that_ends_is_a_false_alarm(beats: Beats) -> None:
    beats.beat(Phase.TRAINING, step=3)
    beats.after(0.9 * LIMIT)
    beats.beat(Phase.TRAINING, step=4)
    assert not beats.watch.suspected
    assert beats.watch.false_alarms == 1
    beats.after(0.5 * LIMIT)
    beats.beat(Phase.TRAINING, step=5)
    assert beats.watch.false_alarms == 1, "a short silence is none"


# ---- the positions of the ranks ------------------------------------------------------------------


def positions_of(place: Place, behaviour: str) -> tuple[str, tuple[RankPosition, ...]]:
    """Return message and positions of an attempt that hangs with a stand-in's behaviour."""
    spec = {"guard": {"hang_seconds": HANG_SECONDS}}
    record = place.start(stand_in=behaviour, launcher=TORCHRUN, spec=spec).exit()
    assert record.failure is not None
    assert record.failure.reason == "hang"
    return record.failure.message, record.positions


def test_the_real_trainer_with_a_rank_that_reads_for_ever(place: Place) -> None:
    """Rank 1 hangs in its loader after two steps; rank 0 waits for it in a collective."""
    _, (waiting, reading) = positions_of(place, "read_for_ever")
    assert (waiting.rank, reading.rank) == (0, 1)
    assert waiting.collective is not None
    assert waiting.collective.ranks == (RankRange(first=0, last=1),)
    assert waiting.step == reading.step == 2
    assert waiting.place is not None
    assert reading.collective is None
    assert reading.place is not None
    assert "data/batches.py" in reading.place
    assert "stand_in.py" in reading.place
    assert "in never_read" in reading.place


def test_the_real_trainer_with_a_rank_that_is_stopped(place: Place) -> None:
    attempt = place.start(spec={**LONG, "guard": {"hang_seconds": HANG_SECONDS}})
    attempt.phase(Phase.TRAINING)
    attempt.hold()
    waiting, stopped = attempt.exit().positions
    assert waiting.collective is not None
    assert waiting.collective.ranks == (RankRange(first=0, last=1),)
    assert (stopped.rank, stopped.place, stopped.process) == (1, None, "stopped")


def test_a_silence_without_end_of_the_attempt_leaves_no_positions(place: Place) -> None:
    attempt = place.start(spec={**LONG, "guard": {"hang_seconds": 2 * HANG_SECONDS}})
    attempt.phase(Phase.TRAINING)
    attempt.hold()
    wait_for(attempt.run.position(0).exists, "position")
    attempt.go_on()
    seen = attempt.seen.reports[-1].heartbeat
    assert seen is not None
    wait_for(
        lambda: (beat := attempt.seen.reports[-1].heartbeat) is not None and beat.step > seen.step,
        "another step",
    )
    (attempt.run.root / "stop").touch()
    record = attempt.exit()
    assert record.outcome == "stopped"
    assert record.positions == ()
    assert record.false_alarms == 1


def test_a_position_of_an_earlier_silence_does_not_count(place: Place) -> None:
    attempt = place.start(stand_in="stuck", spec={"guard": {"hang_seconds": 2.0}})
    attempt.run.positions.mkdir()
    former = RankPosition(rank=0, time=time.time() - 60, step=1, place="elsewhere.py:1 in gone")
    replace_record(attempt.run.position(0), former)
    places = [position.place for position in attempt.exit().positions]
    assert "elsewhere.py:1 in gone" not in places
