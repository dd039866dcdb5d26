"""An environment without the packages that start the ranks."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tests.worker.conftest import Place
from tests.worker.launchers.process_launcher import PROGRAM


def test_an_environment_without_torch_is_named_where_torchrun_needs_it(place: Place) -> None:
    place.local = replace(place.local, allow_code=True)
    python = Path(place.local.roots["data"], "bare", "bin", "python")
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without installed packages
    python.chmod(0o755)
    program = {"command": ["python", "-c", "pass"], "environment": {"prefix": "data:bare"}}
    failure = place.start(launcher=PROGRAM, program=program).exit().failure
    assert failure is not None
    assert failure.reason == "launch_error"
    assert failure.message.endswith(f"before any rank began: {python} has no torch")
    assert failure.remedy.field == "program.environment"
    assert 'program.launcher="command"' in failure.remedy.text
