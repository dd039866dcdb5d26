"""A signed chain for each test of the audit log."""

from tests.server.core.audit.entries import signed_chain  # noqa: F401 - for each test
