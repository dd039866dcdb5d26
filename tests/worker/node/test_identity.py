"""A process is the same only if every attribute agrees; a dead one is dead."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.worker.conftest import wait_for
from worker.node.process_identity import identify, is_alive, open_process, process_stat


def test_a_living_process_is_known_again() -> None:
    identity = identify(os.getpid())
    assert identity is not None
    assert is_alive(identity)
    pidfd = open_process(identity)
    assert pidfd is not None
    os.close(pidfd)


@pytest.mark.parametrize(
    "change", [{"boot_id": "x"}, {"pid_namespace": "1"}, {"start_time": 1}, {"pid": 2**22 - 1}]
)
def test_one_difference_is_another_process(change: dict[str, Any]) -> None:
    identity = identify(os.getpid())
    assert identity is not None
    assert not is_alive(identity.model_copy(update=change))


def test_a_process_that_is_not_reaped_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = identify(process.pid)
    assert identity is not None
    process.kill()
    try:
        wait_for(lambda: (stat := process_stat(process.pid)) and stat.ended, "zombie")
        assert not is_alive(identity)
        assert identify(process.pid) is None
    finally:
        process.communicate()
    assert process_stat(process.pid) is None


def test_a_name_with_parentheses_is_read() -> None:
    code = "open('/proc/self/comm','w').write('a) R 1 (b'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        stat = process_stat(process.pid)
        assert stat is not None
        assert stat.parent == os.getpid()
        process.communicate(b"\n")
