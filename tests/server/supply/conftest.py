"""A source of nodes."""

from __future__ import annotations

import pytest

from server.context import Context
from tests.server.supply.site import Site


@pytest.fixture
def site(context: Context) -> Site:
    """A registered source with its provisioner."""
    return Site(context)
