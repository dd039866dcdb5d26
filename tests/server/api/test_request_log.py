"""Log lines of requests."""

from __future__ import annotations

import pytest

from tests.server.api.in_process import TestClient


@pytest.mark.parametrize(
    ("path", "level"), [("/healthz", "DEBUG"), ("/docs", "INFO"), ("/api/v1/workers/x", "INFO")]
)
def test_what_programs_repeat_is_logged_for_debugging_and_a_refusal_always(
    anonymous: TestClient, caplog: pytest.LogCaptureFixture, path: str, level: str
) -> None:
    caplog.set_level("DEBUG", logger="server.requests")
    anonymous.get(path)
    (line,) = [r for r in caplog.records if r.name == "server.requests"]
    assert line.levelname == level


def test_a_long_path_makes_no_long_line_of_the_log(
    anonymous: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Logs are rotated by size: a few hundred lines of 30 KB would push all others out."""
    caplog.set_level("INFO", logger="server.requests")
    anonymous.request("X" * 10_000, "/api/v1/" + "x" * 20_000)
    (line,) = [r for r in caplog.records if r.name == "server.requests"]
    assert len(line.getMessage()) < 600


def test_a_path_cannot_forge_a_line_of_the_log(
    anonymous: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="server.requests")
    anonymous.get("/api/v1/x%0aforged%1b[2J")
    (line,) = [r.getMessage() for r in caplog.records if r.name == "server.requests"]
    assert "/api/v1/x%0Aforged%1B%5B2J 404" in line
