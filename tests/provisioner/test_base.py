"""Commands of engines: processes that end with them, and their environment."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from provisioner.base import CommandTimeout, run_command
from worker.node.process_identity import process_stat

GRANDCHILD = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])  # holds the outputs of this process
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(float(sys.argv[2]))
"""


def test_a_command_that_outlives_its_limit_ends_with_what_it_started(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(CommandTimeout, match="did not end within 3 s"):
        run_command([sys.executable, "-c", GRANDCHILD, str(path), "600"], seconds=3.0)
    pid = int(path.read_text())
    while (stat := process_stat(pid)) is not None and not stat.ended:
        assert time.monotonic() - began < 60
        time.sleep(0.01)


def test_a_command_that_ends_is_not_kept_waiting_by_what_it_started(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    done = run_command([sys.executable, "-c", GRANDCHILD, str(path), "0"], seconds=120)
    pid = int(path.read_text())
    os.kill(pid, signal.SIGKILL)  # it has not been ended: it may be a master connection of ssh
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_command_reads_its_input_and_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_JOIN_TOKEN", "secret")
    done = run_command(["sh", "-c", "cat; env >&2; exit 3"], stdin=b"text" * 100_000)
    assert (done.returncode, done.stdout) == (3, b"text" * 100_000)
    assert b"PATH=" in done.stderr
    assert b"secret" not in done.stderr
    assert run_command(["sh", "-c", "echo abc"], kept_bytes=2).stdout == b"ab"
