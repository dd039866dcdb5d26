"""A node that runs code of jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.worker.conftest import Place


@pytest.fixture
def place(place: Place) -> Place:
    """A node that runs code of jobs."""
    place.local = replace(place.local, allow_code=True)
    return place
