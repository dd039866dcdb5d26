"""The lines of `prove` on stdout: one for each check, in order with those on stderr."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.cli.commands.machines.prove import _Lines


def line(status: str, **fields: Any) -> dict[str, Any]:
    return {"status": status, "seconds": 2.0, "figures": {}, "bounds": {}, "findings": []} | fields


def test_a_check_is_named_when_it_starts_and_its_result_ends_the_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _Lines() as lines:
        lines.begin("layouts/fsdp-4", 4, 19)
        begun = capsys.readouterr().out
        assert begun.split() == ["[4/19]", "layouts/fsdp-4"]
        assert not begun.endswith("\n")
        lines.end(line("passed", figures={"loss_off": 0.0}, bounds={"loss_off": "<= 1"}))
        assert capsys.readouterr().out == "✓     2.0 s  loss_off 0.0 (<= 1)\n"
        lines.begin("strategies/2d-async", 19, 19)
        lines.end(line("skipped", reason="needs CUDA with symmetric memory"))
        ended = "-     2.0 s  needs CUDA with symmetric memory\n"
        assert capsys.readouterr().out.endswith(ended)
    assert capsys.readouterr().out == ""


def test_problems_follow_the_line_of_their_check(capsys: pytest.CaptureFixture[str]) -> None:
    with _Lines() as lines:
        lines.begin("machine/probe", 2, 19)
        lines.end(line("failed", error="off is 2", findings=["rank 1 on node b: slow"]))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "    off is 2",
        "    rank 1 on node b: slow",
    ]


def test_an_interrupted_check_ends_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        with _Lines() as lines:
            lines.begin("machine/probe", 2, 19)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capsys.readouterr().out.endswith("interrupted\n")
