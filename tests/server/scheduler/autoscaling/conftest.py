"""A source of nodes."""

from __future__ import annotations

import pytest

from server.core.context import Context
from tests.server.cluster.supply.site import Site
from tests.server.harness import Harness
from tests.server.scheduler.autoscaling.yard import Yard


@pytest.fixture
def site(context: Context) -> Site:
    """A registered source with its provisioner."""
    return Site(context)


@pytest.fixture
def yard(harness: Harness, site: Site) -> Yard:
    """A scheduler with a source of nodes of 4 slots."""
    return Yard(harness, site)
