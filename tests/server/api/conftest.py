"""The application over a database of each kind, and clients with tokens of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from server.api.auth.admin import ensure_admin_token
from server.api.auth.service import create_token
from server.app.factory import create_app
from server.core.context import Context
from tests.server.api.in_process import TestClient
from trainyard.protocol.rest.access import TokenRequest

BASE_URL = "http://127.0.0.1:8470"


@pytest.fixture
def app(context: Context) -> Iterator[FastAPI]:
    """The application, with its threads running."""
    app = create_app(context)
    with TestClient(app):
        yield app


@pytest.fixture
def admin_token(context: Context) -> str:
    """The admin token."""
    path = ensure_admin_token(context)
    assert path is not None
    return path.read_text().strip()


@pytest.fixture
def api_token(context: Context) -> str:
    """A token of kind `api`, named `someone`."""
    _, token = create_token(context, TokenRequest(name="someone"))
    return token


@pytest.fixture
def anonymous(app: FastAPI) -> TestClient:
    """A client without a token; it keeps cookies, as a browser does."""
    return TestClient(app, base_url=BASE_URL)


@pytest.fixture
def client(app: FastAPI, api_token: str) -> TestClient:
    """A client with an API token."""
    return TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {api_token}"})


@pytest.fixture
def admin(app: FastAPI, admin_token: str) -> TestClient:
    """A client with the admin token."""
    return TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {admin_token}"})
