"""From a folder of wheels to the first finished job, by one command on a bare machine.

`make test-install` makes the machine and the wheels first, then runs these in namespaces of mounts,
processes and network of their own.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time

import pytest

from tests.install.bare_machine import BareMachine, seconds_of
from tests.install.build import NEW, wheels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.environ.get("TRAINYARD_TEST_INSTALL") is None,
        reason="TRAINYARD_TEST_INSTALL is not set; make test-install",
    ),
]
LIMIT_SECONDS = 180.0
BUILDS = ("cc", "gcc", "make", "pip", "pip3", "git", "node")
"""Programs that build or install packages."""


def test_one_command_leads_from_the_wheel_to_a_finished_job(machine: BareMachine) -> None:
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
    for program in BUILDS:
        assert machine.run("which", program, check=False).returncode, program
    library, programs = wheels(NEW, at="/new")
    given = ("--constraints", "/new/constraints.txt", "--with", library, "--from", programs)
    command = ("trainyard", "up", "--submit", "--once")
    began = time.monotonic()
    done = machine.run("uv", "tool", "run", *given, *command)
    seconds = seconds_of(began)
    figure = {
        "what": "from the wheel to the first finished job",
        "seconds": seconds,
        "at_most_seconds": LIMIT_SECONDS,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    sys.stdout.write(json.dumps(figure) + "\n")
    assert "step 40 saved (final)" in done.stdout, done.stdout
    assert machine.running() == {}
    assert seconds <= LIMIT_SECONDS


def test_an_installed_tool_offers_the_command(machine: BareMachine) -> None:
    library, programs = wheels(NEW, at="/new")
    given = ("--constraints", "/new/constraints.txt", "--with", library, programs)
    machine.run("uv", "tool", "install", *given)
    helped = machine.run("/root/.local/bin/trainyard", "up", "--help").stdout
    assert "--submit" in helped
    lock = machine.top / "root/.local/share/uv/tools/trainyard-programs/share/trainyard"
    assert (lock / "constraints.txt").read_bytes() == (NEW / "constraints.txt").read_bytes()
