"""Fixtures of the tests of elastic jobs."""

from __future__ import annotations

import math

import pytest

from server.core.context import Context
from server.core.liveness import beat
from server.scheduler.elastic import steps


@pytest.fixture(autouse=True)
def up(context: Context) -> None:
    """Servers are up, and have been for long."""
    beat(context)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick carries out all steps, however slow the machine is."""
    monkeypatch.setattr(steps, "SECONDS_A_TICK", math.inf)
