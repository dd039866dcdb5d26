"""Settings that changed their names."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from server.__main__ import main
from server.settings import Settings


def test_a_former_name_is_refused_and_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CHORES_KEPT_DAYS", "0")
    with pytest.raises(ValidationError, match="is now TRAINYARD_OPERATIONS_KEPT_DAYS"):
        Settings()


def test_the_server_names_a_variable_that_it_cannot_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRAINYARD_LOG_LEVEL", "info")
    monkeypatch.setenv("TRAINYARD_PORT", "many")
    assert main(["migrate"]) == 2
    legal = "Input should be 'DEBUG', 'INFO' or 'WARNING'"
    assert f"TRAINYARD_LOG_LEVEL='info': {legal}" in caplog.messages
    assert any(line.startswith("TRAINYARD_PORT='many': ") for line in caplog.messages)
    assert "Traceback" not in caplog.text
