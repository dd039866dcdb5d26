"""A control plane that runs no code of jobs, one for each file of attacks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import yard
from tests.e2e.control_plane import ControlPlane

__all__ = ["plane", "yard"]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Broker, server, scheduler and worker on a folder of their own."""
    made = ControlPlane(tmp_path_factory.mktemp("attack"), TRAINYARD_ALLOW_CODE="false")
    try:
        yield made
    finally:
        made.end()
