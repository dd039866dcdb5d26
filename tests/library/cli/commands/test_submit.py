"""`submit`: usage without a file, warnings of the plan, and jobs that cannot fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.library.conftest import Run, Yard

TOO_LARGE = """
name = "large"
[model]
size = "8B"
"""


def test_nothing_is_submitted_without_a_file(
    yard: Yard, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bare = run("submit")
    assert bare.exit_code == 2
    assert "submit needs a spec file" in bare.stderr
    assert "`trainyard init` writes one" in bare.stderr
    (tmp_path / "job.toml").write_text(TOO_LARGE)
    assert "trainyard submit job.toml" in run("submit", "--wait").stderr
    assert run("ps").stdout.startswith("No jobs.")
    assert run("submit", "--set", "name=tiny").exit_code == 0


def test_a_plan_warns_before_the_job_is_stored(yard: Yard, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("[resources]\nworld_size = 3\n[training]\nglobal_batch_size = 16\n")
    done = run("submit", str(file))
    assert done.exit_code == 0
    assert "Warning: " in done.stderr
    assert "idle" in done.stderr


@pytest.mark.parametrize(
    ("answer", "options", "code"), [("n\n", (), 1), ("y\n", (), 0), (None, ("--yes",), 0)]
)
def test_what_cannot_fit_is_confirmed_on_a_terminal(
    yard: Yard,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str | None,
    options: tuple[str, ...],
    code: int,
) -> None:
    monkeypatch.setattr("trainyard.cli.commands.submit.has_terminal", lambda: True)
    (tmp_path / "job.toml").write_text(TOO_LARGE)
    done = run("submit", str(tmp_path / "job.toml"), *options, stdin=answer)
    assert done.exit_code == code
    assert "the fullest rank needs about" in done.stderr
    assert ("The job does not fit into the memory of 1 rank" in done.stderr) == (not options)
    assert run("ps").stdout.startswith("No jobs.") == (code == 1)


def test_without_a_terminal_it_is_submitted_with_a_warning(
    yard: Yard, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text(TOO_LARGE)
    done = run("submit", str(tmp_path / "job.toml"))
    assert done.exit_code == 0
    assert "the fullest rank needs about" in done.stderr
