"""One control plane for all tests of this folder: it starts once, and recovers from each fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.control_plane import ControlPlane, Follower, cancel_all
from tests.web.conftest import browser, live
from trainyard.client.sdk import Client

__all__ = ["browser", "live"]


@pytest.fixture(scope="package")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Broker, server, scheduler and worker on their own folder."""
    made = ControlPlane(tmp_path_factory.mktemp("e2e"))
    try:
        yard = made.connect()
        yield made
        cancel_all(yard)
        yard.close()
    finally:
        made.end()


@pytest.fixture
def yard(plane: ControlPlane) -> Iterator[Client]:
    """A connection with the admin token; jobs that outlive the test are cancelled."""
    with plane.connect() as connection:
        yield connection
        cancel_all(connection)


@pytest.fixture
def follower(plane: ControlPlane) -> Iterator[Follower]:
    """A client of the stream, connected."""
    with plane.connect() as connection:
        made = Follower(connection)
        made.start()
        yield made
