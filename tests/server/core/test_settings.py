"""Renamed settings, and unusable ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from server.__main__ import main, scheduler
from server.core.context import Context
from server.core.settings import Settings


def test_the_server_names_a_variable_that_it_cannot_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRAINYARD_LOG_LEVEL", "info")
    monkeypatch.setenv("TRAINYARD_PORT", "many")
    monkeypatch.setenv("TRAINYARD_ROOTS", "checkpoints,data")
    assert main(["migrate"]) == 2
    legal = "Input should be 'DEBUG', 'INFO' or 'WARNING'"
    assert f"TRAINYARD_LOG_LEVEL='info': {legal}" in caplog.messages
    assert any(line.startswith("TRAINYARD_PORT='many': ") for line in caplog.messages)
    needed = 'an array of JSON is needed, as ["checkpoints", "data"]'
    assert f"TRAINYARD_ROOTS='checkpoints,data': {needed}" in caplog.messages
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("given", "roots"),
    [('["a"]', ("a",)), ("[]", ()), ('["checkpoints", "x"]', ("checkpoints", "x"))],
)
def test_roots_are_an_array_of_json(
    given: str, roots: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_ROOTS", given)
    assert Settings().roots == roots


@pytest.mark.parametrize("command", ["api", "scheduler", "migrate"])
def test_each_command_names_a_database_url_that_is_not_legal(
    command: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRAINYARD_DATABASE_URL", "mysql://me:secret@db/x")
    assert main([command]) == 2
    assert any(
        line.startswith("TRAINYARD_DATABASE_URL=mysql://********@db/x is not legal")
        for line in caplog.messages
    ), caplog.messages


def password_file(path: Path, fault: str) -> tuple[Path, str]:
    """Return an unusable file, and a part of its error."""
    if fault != "is missing":
        path.write_text("" if fault == "is empty" else "secret\n")
        path.chmod(0o644 if fault == "is open" else 0o600)
    return path, {
        "is missing": "cannot be read: ",
        "is empty": "has 0 lines, but line 0 (from 0) is needed",
        "is open": "has mode 0644, so that others may read it",
    }[fault]


@pytest.mark.parametrize("fault", ["is missing", "is empty", "is open"])
@pytest.mark.parametrize("command", ["api", "scheduler", "migrate"])
def test_each_command_names_a_password_file_that_cannot_be_used(
    command: str,
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, detail = password_file(tmp_path / "password", fault)
    monkeypatch.setenv("TRAINYARD_DATABASE_URL", "postgresql://me@127.0.0.1/trainyard")
    monkeypatch.setenv("TRAINYARD_DATABASE_PASSWORD_FILE", str(path))
    assert main([command]) == 2
    assert any(
        line.startswith(f"TRAINYARD_DATABASE_PASSWORD_FILE={path} {detail}")
        for line in caplog.messages
    ), caplog.messages


@pytest.mark.parametrize("fault", ["is missing", "is empty", "is open"])
def test_the_scheduler_names_a_password_file_of_its_broker(
    fault: str,
    context: Context,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, detail = password_file(tmp_path / "password", fault)
    assert scheduler(replace(context, settings=Settings(broker_password_file=path))) == 2
    assert f"TRAINYARD_BROKER_PASSWORD_FILE={path} {detail}" in caplog.text
