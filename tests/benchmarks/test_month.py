"""What jobs leave behind, on a small number: each kind grows, and a pruning takes it away."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from benchmarks.control_plane.servers import store
from benchmarks.retention.month import measure


def test_each_kind_grows_with_the_jobs_and_is_pruned(capsys: pytest.CaptureFixture[str]) -> None:
    with store("sqlite") as opened:
        assert measure(opened, Namespace(jobs=3))
    line = json.loads(capsys.readouterr().out)
    assert line["pruning"]["jobs"] == 4, "with the first one, which loads what is loaded once"
    assert line["month"]["kept_mib"] > line["month"]["pruned_mib"]
    before, after, left = (line[name]["disk_kib"] for name in ("before", "after", "pruned"))
    for kind in ("series", "digests", "logs"):
        assert after[kind] > before[kind] >= left[kind]
