"""The growth of the server on a small size: every part is stored, and each stage has its line."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from benchmarks.control_plane.ingest.growth import PARTS, _shown, measure


def test_each_part_is_stored_in_stages(capsys: pytest.CaptureFixture[str]) -> None:
    given = Namespace(parts=list(PARTS), jobs=40, points=80_000, log_mib=2, stages=2)
    measure("sqlite", given)
    lines = {
        line["benchmark"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())
    }
    assert lines["growth_memory_jobs"]["jobs"] == 40
    assert lines["growth_memory_points"]["points"] == 80_000
    assert lines["growth_memory_log"]["MiB"] == 2
    for part in PARTS:
        stages = lines[f"growth_processor_{part}"]["stages"]
        assert all(len(column) == 2 for column in stages.values())
        assert min(stages["memory_mib"]) > 10
    grown = lines["growth_memory_points"]["stages"]["database_mib"]
    assert grown[1] > grown[0]


def test_a_single_request_is_its_own_p95() -> None:
    assert _shown([0.2]) == (200.0, 200.0)
