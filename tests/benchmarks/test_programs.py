"""`python -m benchmarks` names programs that exist."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from benchmarks.__main__ import PROGRAMS, main


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_listed_program_exists(name: str) -> None:
    assert find_spec(f"benchmarks.{name}") is not None


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trainer", "trainers"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("no benchmark trainers; there are ")
    assert "simulator.placement" in error
