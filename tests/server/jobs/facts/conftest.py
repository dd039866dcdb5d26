"""Clients of the API, from its own tests."""

from __future__ import annotations

from tests.server.api.conftest import anonymous, api_token, app, client

__all__ = ["anonymous", "api_token", "app", "client"]
