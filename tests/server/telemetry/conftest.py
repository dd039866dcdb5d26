"""A job with its supervisor."""

from __future__ import annotations

import pytest

from tests.server.harness import Harness, Supervisor

Launched = tuple[str, Supervisor]


@pytest.fixture
def launched(harness: Harness) -> Launched:
    """A job of one slot with its supervisor."""
    harness.add_node()
    job_id, (supervisor,) = harness.launched()
    return job_id, supervisor
