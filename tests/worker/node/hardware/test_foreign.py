"""Processes on devices: descendants of a supervisor are the node's own, others are named."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys

import pytest

from trainyard.protocol.node_samples import AcceleratorSample, DeviceProcess
from worker.node import process_identity
from worker.node.hardware.foreign import without_own
from worker.node.process_identity import INITIAL_PID_NAMESPACE

NO_PROCESS = 2**22 + 7
"""Above the highest pid of Linux."""


def sample(*pids: int) -> AcceleratorSample:
    return AcceleratorSample(
        uuid="GPU-a", foreign=tuple(DeviceProcess(pid=pid, memory_bytes=1 << 30) for pid in pids)
    )


@pytest.fixture
def namespace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the PID namespace of these tests as the given one."""
    monkeypatch.setattr(process_identity, "_pid_namespace", lambda: request.param)


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("namespace", [INITIAL_PID_NAMESPACE], indirect=True)
def test_what_runs_below_a_supervisor_is_not_foreign() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as child:
        try:
            (own,) = without_own((sample(child.pid, NO_PROCESS),), lambda: {os.getpid()})
            assert [process.pid for process in own.foreign] == [NO_PROCESS]
            (all_,) = without_own((sample(child.pid),), lambda: {NO_PROCESS})
            (process,) = all_.foreign
        finally:
            child.kill()
    assert process.user == pwd.getpwuid(os.getuid()).pw_name
    assert process.command is not None
    assert process.command.startswith("python")
    assert process.memory_bytes == 1 << 30


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("namespace", ["4026532201"], indirect=True)
def test_inside_a_namespace_no_process_is_named_after_another_one_of_its_pid() -> None:
    (found,) = without_own((sample(os.getpid()),), tuple)
    assert found.foreign == (DeviceProcess(pid=os.getpid(), memory_bytes=1 << 30),)


def test_a_process_that_has_ended_has_neither_user_nor_name() -> None:
    (found,) = without_own((sample(NO_PROCESS),), tuple)
    assert found.foreign == (DeviceProcess(pid=NO_PROCESS, memory_bytes=1 << 30),)


def test_supervisors_are_looked_up_only_where_a_device_has_a_process() -> None:
    def fail() -> tuple[int, ...]:
        raise AssertionError("called")

    assert without_own((sample(),), fail) == (sample(),)
