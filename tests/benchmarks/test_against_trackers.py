"""The comparison with other trackers: our side on a small size, the reason without the others."""

from __future__ import annotations

import pytest

from benchmarks.control_plane.ingest.against_trackers import cost, main


def test_the_cost_of_a_point_is_that_of_points_that_are_stored() -> None:
    microseconds = cost("trainyard", "", requests=5, values=100)
    assert 0 < microseconds < 10_000


def test_without_the_other_servers_nothing_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr()
    assert printed.err == "not measured: no interpreter with mlflow and trackio was given\n"
    assert not printed.out
