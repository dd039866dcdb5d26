"""A client that disconnects before its request is complete."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI
from starlette.types import Message, Scope


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_client_that_leaves_is_no_failure(
    app: FastAPI, api_token: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="server.requests")
    coming: list[Message] = [
        {"type": "http.request", "body": b'{"name": ', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return coming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    headers = {
        "host": "127.0.0.1:8470",
        "authorization": f"Bearer {api_token}",
        "content-type": "application/json",
    }
    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/api/v1/jobs",
        "raw_path": b"/api/v1/jobs",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "server": ("127.0.0.1", 8470),
        "client": ("127.0.0.1", 1),
    }
    asyncio.run(app(scope, receive, send))
    assert sent == []
    lines = [r for r in caplog.records if r.name == "server.requests"]
    assert [r.levelname for r in lines] == ["INFO"]
    assert " POST /api/v1/jobs 499 " in lines[0].getMessage()
