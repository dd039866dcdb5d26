"""SIGTERM to every process of a Slurm step is a preemption, even if the supervisor is last."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.conftest import Attempt, Place, wait_for
from tests.worker.launchers.process_launcher import PROGRAM
from trainyard.run.directory import Phase


def check_of(attempt: Attempt) -> int:
    """Return the process that checks spec and input."""

    def look() -> int | None:
        for pid in attempt.processes:
            with suppress(OSError):  # it has just ended
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"check_lasts" in words and b"check" in words:
                    return pid
        return None

    return wait_for(look, "check")


@pytest.mark.parametrize("seconds", [0.0, 0.5], ids=["with", "before"])
def test_sigterm_to_the_check_and_the_supervisor_is_a_preemption(
    place: Place, seconds: float
) -> None:
    attempt = place.start(stand_in="check_lasts")
    pid = check_of(attempt)
    os.kill(pid, signal.SIGTERM)
    time.sleep(seconds)
    os.kill(attempt.pid, signal.SIGTERM)
    record = attempt.exit()
    assert record.outcome == "failed"
    assert record.failure is not None
    assert record.failure.reason == "preempted", record.failure.message


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGTERM, "SIGTERM"),
        (signal.SIGKILL, "SIGKILL"),
        (signal.SIGRTMIN + 1, "SIGRTMIN+1"),
    ],
)
def test_a_check_that_a_signal_ends_has_found_nothing_in_the_input(
    place: Place, number: int, name: str
) -> None:
    attempt = place.start(stand_in="check_lasts")
    os.kill(check_of(attempt), number)
    record = attempt.exit()
    assert record.ranks == ()
    failure = record.failure
    assert failure is not None
    assert (failure.reason, failure.signal) == ("launch_error", name)
    assert failure.message == f"the check of spec and input was ended by {name}"


def test_ranks_that_the_signal_ends_before_it_reaches_the_supervisor_are_preempted(
    place: Place,
) -> None:
    attempt = place.start(stand_in="sleep")
    attempt.phase(Phase.TRAINING)
    for pid in attempt.processes:
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.5)
    os.kill(attempt.pid, signal.SIGTERM)
    failure = attempt.exit().failure
    assert failure is not None
    assert failure.reason == "preempted", failure.message


def test_a_signal_that_a_shell_passes_on_counts_as_that_of_its_program(place: Place) -> None:
    place.local = replace(place.local, allow_code=True)
    script = "echo runs; sleep 600; exit $?"
    program = {"command": ["sh", "-c", script], "launcher": "command"}
    attempt = place.start(launcher=PROGRAM, ranks=1, program=program)
    wait_for(lambda: "runs" in attempt.log(0), "start of the program")
    for pid in attempt.processes:
        if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
            os.kill(pid, signal.SIGTERM)
    time.sleep(0.5)
    os.kill(attempt.pid, signal.SIGTERM)
    record = attempt.exit()
    assert [end.exit_code for end in record.ranks] == [143]
    assert record.failure is not None
    assert record.failure.reason == "preempted", record.failure.message
