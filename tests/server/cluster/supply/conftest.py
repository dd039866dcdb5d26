"""A source of nodes."""

from __future__ import annotations

import pytest

from server.core.context import Context
from tests.server.cluster.supply.site import Site


@pytest.fixture
def site(context: Context) -> Site:
    """A registered source with its provisioner."""
    return Site(context)
