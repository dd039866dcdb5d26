"""Fixtures of the tests of elastic jobs."""

from __future__ import annotations

import pytest

from server.core.context import Context
from server.core.liveness import beat


@pytest.fixture(autouse=True)
def up(context: Context) -> None:
    """Servers are up, and have been for long."""
    beat(context)
