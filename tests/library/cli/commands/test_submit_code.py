"""`submit` and `plan` pack the code of a spec file, and upload it once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import func, select

from server.core.database.metric_and_log_tables import packs
from tests.library.conftest import Run, Yard
from trainyard.run.failures import FailureReason

SPEC = """
name = "mine"

[program]
command = ["train.py"]

[program.code]
local = "code"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A spec file next to its code."""
    folder = tmp_path / "project"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "train.py").write_text("print(1)")
    path = folder / "job.toml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def allowed(yard: Yard) -> None:
    """The server accepts code."""
    allowed = yard.harness.context.settings.model_copy(update={"allow_code": True})
    object.__setattr__(yard.harness.context, "settings", allowed)


@pytest.mark.usefixtures("allowed")
def test_a_plan_and_two_submissions_share_one_pack(yard: Yard, run: Run, file: Path) -> None:
    for words in (("plan", str(file)), ("submit", str(file)), ("submit", str(file))):
        result = run(*words)
        assert result.exit_code == 0, result.stderr
        assert "The code: 1 file, " in result.stderr
    with yard.harness.context.database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(packs)) == 1


@pytest.mark.usefixtures("allowed")
def test_a_submission_prints_the_warnings_of_the_plan(run: Run, file: Path) -> None:
    warned = run("submit", str(file))
    assert warned.exit_code == 0
    assert "Warning: program.resume: resume='never': a retry starts the program" in " ".join(
        warned.stderr.split()
    )
    assert "Warning" not in warned.stdout
    settings = ("--set", "program.resume=any_world_size", "--set", "name=other")
    assert "Warning" not in run("submit", str(file), *settings).stderr


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize("steps", [None, 1000])
def test_a_program_that_reports_no_step_is_shown_without_one(
    yard: Yard, run: Run, steps: int | None
) -> None:
    given = {"command": ["train.py"], "steps": steps}
    job_id, (supervisor,) = yard.harness.launched(program=given)
    supervisor.train(0)
    supervisor.end("succeeded")
    shown = run("show", job_id).stdout
    assert "no step reported" in shown
    assert "0 → 0" not in shown
    assert re.search(r"tiny +. succeeded +- ", run("ps").stdout)
    events = run("events", job_id).stdout
    assert "Attempt 1 succeeded" in events
    assert "at step 0" not in events
    assert ("tiny runs" in events) == (steps is None)


def test_a_server_that_takes_no_code_says_so(yard: Yard, run: Run, file: Path) -> None:
    result = run("submit", str(file))
    assert result.exit_code == 2
    assert "TRAINYARD_ALLOW_CODE=true" in result.stderr


@pytest.mark.usefixtures("yard")
def test_a_secret_ends_the_command_with_its_name(run: Run, file: Path) -> None:
    (file.parent / "code" / ".env").write_text("TOKEN=x")
    result = run("submit", str(file), "--set", "name=other")
    assert result.exit_code == 2
    assert ".env" in result.stderr


@pytest.mark.usefixtures("allowed")
def test_a_script_that_is_not_in_the_pack_is_warned_of(run: Run, file: Path) -> None:
    result = run("plan", str(file), "--set", 'program.command=["trian.py"]')
    assert result.exit_code == 0
    assert "Warning: program.command[0]='trian.py': the pack has no trian.py; did you mean" in (
        " ".join(result.stderr.split())
    )


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("resume", "words"),
    [
        ("never", "resume, from the start, on any number of slots"),
        ("same_world_size", "resume, on the same number of slots"),
        ("any_world_size", "resume, on any number of slots"),
    ],
)
def test_the_next_command_is_one_that_is_legal(
    yard: Yard, run: Run, resume: str, words: str
) -> None:
    program = {"command": ["train.py"], "resume": resume}
    job_id, (supervisor,) = yard.harness.launched(program=program)
    supervisor.end("failed", FailureReason.PROGRAM_START_ERROR)
    shown = run("show", job_id).stdout
    assert words in shown
    assert ("--world-size" in shown) == (resume != "same_world_size")
    silent = run("logs", job_id)
    assert (silent.exit_code, silent.stdout) == (0, "")
    assert "Rank 0 has written nothing" in silent.stderr
