"""Clients of the API, from its own tests, and a job with an attempt that may upload."""

from __future__ import annotations

import pytest

from tests.server.api.conftest import anonymous, api_token, app, client
from tests.server.harness import Harness, Supervisor

__all__ = ["anonymous", "api_token", "app", "client"]


@pytest.fixture
def launched(harness: Harness) -> tuple[str, Supervisor]:
    harness.add_node()
    job_id, (supervisor,) = harness.launched()
    return job_id, supervisor
