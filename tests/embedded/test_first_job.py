"""The exit status of `up` by that of the command which follows its job."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded.child import any_free_port
from embedded.first_job import DEFAULT_JOB, INTERRUPTED, FirstJob, FirstJobRequest
from tests.worker.conftest import wait_for
from trainyard.client.spec_file import apply, parse_assignment
from trainyard.planner.plan import plan
from trainyard.spec.job import parse_job_spec
from trainyard.training.known_devices import Slot

ONCE = FirstJobRequest(None, end_afterwards=True)


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that never responds, so that the command waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def waits(job: FirstJob) -> bool:
    """Whether the command has a connection."""
    try:
        files = [fd.readlink() for fd in Path(f"/proc/{job.pid}/fd").iterdir()]
    except FileNotFoundError:  # one was closed meanwhile
        return False
    return any(str(name).startswith("socket:") for name in files)


def test_a_command_that_ended_by_itself_gives_its_status() -> None:
    job = FirstJob(ONCE, url=f"http://127.0.0.1:{any_free_port('127.0.0.1')}", token="t")
    wait_for(job.ends_up, "end of the command")
    assert job.leave(interrupted=False) == 1, "no server"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_a_signal_ended_gives_130(silent: str, number: signal.Signals) -> None:
    """Ctrl-C reaches the command too, which may end before `up` leaves it."""
    job = FirstJob(ONCE, url=silent, token="t")
    wait_for(lambda: waits(job), "request of the command")
    assert Path(f"/proc/{job.pid}/fd/0").readlink() == Path("/dev/null")
    os.kill(job.pid, number)
    wait_for(job.ends_up, "end of the command")
    assert job.leave(interrupted=number == signal.SIGINT) == INTERRUPTED


def test_a_command_that_follows_its_job_is_left(silent: str) -> None:
    job = FirstJob(ONCE, url=silent, token="t")
    wait_for(lambda: waits(job), "request of the command")
    assert not job.ends_up()
    assert job.leave(interrupted=True) == INTERRUPTED
    assert job.ends_up()


def test_the_default_job_has_no_warnings() -> None:
    given = [parse_assignment(text) for text in DEFAULT_JOB[1::2]]
    planned = plan(parse_job_spec(apply({}, given)), slots=[Slot("cpu", "CPU", 2**34)])
    assert list(planned.warnings) == []
