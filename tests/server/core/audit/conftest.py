"""A signed chain for each test of the audit log."""

from __future__ import annotations

import pytest

from server.core.audit.signed_digests import sign_chain
from server.core.context import Context


@pytest.fixture(autouse=True)
def _signed_chain(context: Context) -> None:
    """Sign the ends of the empty chain, as the migration does."""
    with context.database.write() as connection:
        assert sign_chain(context, connection)
