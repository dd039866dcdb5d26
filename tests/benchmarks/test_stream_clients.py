"""The stream's clients on a small size: each step of each job reaches those that parse frames."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from benchmarks.control_plane.servers import store
from benchmarks.control_plane.stream_clients import PARSES, measure


def test_each_step_reaches_each_client(capsys: pytest.CaptureFixture[str]) -> None:
    given = Namespace(clients=2 * PARSES, jobs=2, seconds=1.0, api_processes=1)
    with store("sqlite") as opened:
        measure(opened, given)
    line = json.loads(capsys.readouterr().out)
    steps = 2 * 2  # of two jobs, one each half a second
    assert line["frames"] == steps * 2
    assert line["figure"] > 0
    assert line["kib_a_client"] > 1
