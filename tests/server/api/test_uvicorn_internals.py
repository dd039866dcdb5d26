"""What `BoundedProtocol` uses of uvicorn's protocol, which uvicorn may change in any version."""

from __future__ import annotations

import ast
import asyncio
import importlib.metadata
import inspect
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from server.api.wire import http_protocol

ROOT = Path(__file__).parents[3]
METHODS = {
    "connection_made": 1,
    "connection_lost": 1,
    "data_received": 1,
    "send_400_response": 1,
    "pause_writing": 0,
    "resume_writing": 0,
    "on_message_begin": 0,
    "on_url": 1,
    "on_header": 2,
    "on_headers_complete": 0,
    "on_message_complete": 0,
}
"""Methods that are overridden, and their arguments: uvicorn, asyncio or the parser calls them."""
OF_PROTOCOL = ("client", "cycle", "flow", "headers", "loop", "pipeline", "transport")
"""Attributes of a connection."""
OF_CYCLE = ("disconnected", "response_complete", "response_started")
"""Attributes of a request with its answer."""
OF_FLOW = ("read_paused",)
"""Attributes of the flow control."""


class Pipe(asyncio.Transport):
    """A transport to nowhere."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})


async def _application(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("its task is cancelled before")


async def connection() -> HttpToolsProtocol:
    """Return uvicorn's own protocol, with a request whose headers it has read."""
    state = ServerState()
    made = HttpToolsProtocol(Config(_application, ws="none"), state, {})
    made.connection_made(Pipe())
    made.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n")
    for task in state.tasks:
        task.cancel()
    return made


def lacking(owner: object, names: Iterable[str], *, of: str) -> list[str]:
    """Return what to do about each attribute that is gone; nothing where all are there."""
    version = importlib.metadata.version("uvicorn")
    return [
        f"uvicorn {version} has no {of}.{name}, which server/api/wire/http_protocol.py uses: adapt "
        "that file, or pin a version that has it"
        for name in names
        if not hasattr(owner, name)
    ]


def test_uvicorn_has_every_attribute_that_the_protocol_uses() -> None:
    made = asyncio.run(connection())
    found = lacking(made, [*METHODS, *OF_PROTOCOL], of="HttpToolsProtocol")
    assert not found, "\n".join(found)  # before those of its attributes are read
    found = [
        *lacking(made.cycle, OF_CYCLE, of="RequestResponseCycle"),
        *lacking(made.flow, OF_FLOW, of="FlowControl"),
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("name", "arguments"), METHODS.items())
def test_uvicorn_takes_the_arguments_that_the_protocol_passes_on(name: str, arguments: int) -> None:
    signature = inspect.signature(getattr(HttpToolsProtocol, name))
    signature.bind(*range(1 + arguments))  # self, too


def test_the_attributes_have_the_types_that_the_protocol_expects() -> None:
    made = asyncio.run(connection())
    assert made.client == ("127.0.0.1", 1)
    assert made.headers == [(b"host", b"x"), (b"content-length", b"1")]
    assert len(made.pipeline) == 0
    flags = [getattr(made.cycle, name) for name in OF_CYCLE]
    assert [*flags, made.flow.read_paused] == [False] * 4


def test_an_attribute_that_is_gone_is_named() -> None:
    (message,) = lacking(SimpleNamespace(flow=1), ["flow", "pipeline"], of="HttpToolsProtocol")
    assert "has no HttpToolsProtocol.pipeline" in message
    assert "http_protocol.py" in message


def test_the_lists_have_all_that_the_protocol_uses() -> None:
    """Without its own attributes, those of its class body and of `self.x = ...`."""
    body = next(
        node
        for node in ast.parse(inspect.getsource(http_protocol)).body
        if isinstance(node, ast.ClassDef) and node.name == "BoundedProtocol"
    )
    used: dict[str, set[str]] = {}
    own = {"limits", "open"} | {
        node.name for node in body.body if isinstance(node, ast.FunctionDef)
    }
    for node in ast.walk(body):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            used.setdefault(owner, set()).add(node.attr)
            if owner == "self" and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
    assert {name for name in own if hasattr(HttpToolsProtocol, name)} == set(METHODS)
    assert used["super()"] <= set(METHODS)
    assert used["self"] - own == set(OF_PROTOCOL)
    assert used["self.cycle"] == set(OF_CYCLE)
    assert used["self.flow"] == set(OF_FLOW)


def test_the_bound_of_uvicorn_is_the_minor_version_after_the_pinned_one() -> None:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = re.search(r"^uvicorn==(\d+)\.(\d+)\.", constraints, re.MULTILINE)
    assert pinned is not None
    bound = f"<{pinned[1]}.{int(pinned[2]) + 1}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (server,) = (
        each for each in project["optional-dependencies"]["server"] if each.startswith("uvicorn")
    )
    assert server.endswith(f",{bound}"), f"{server!r} has to end with {bound!r}"
