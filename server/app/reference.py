"""What a stranger may read of the API: its document and the page made of it, worked out once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request, Response

from server.app.reference_page import STYLE, STYLE_PATH, render
from server.http.responses import JSON

HTML = "text/html"
CSS = "text/css"

router = APIRouter(tags=["meta"])


@dataclass(frozen=True)
class _Text:
    content: bytes
    media_type: str
    etag: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.content).hexdigest()[:32]
        object.__setattr__(self, "etag", f'"{digest}"')


class Published:
    """The texts of one application."""

    style = _Text(STYLE.encode(), CSS)

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    @cached_property
    def document(self) -> _Text:
        """The OpenAPI document."""
        return _Text(orjson.dumps(self._app.openapi()), JSON)

    @cached_property
    def page(self) -> _Text:
        """The reference."""
        return _Text(render(self._app.openapi()).encode(), HTML)


def _described(media_type: str) -> dict[int | str, dict[str, Any]]:
    kind = "object" if media_type == JSON else "string"
    return {200: {"content": {media_type: {"schema": {"type": kind}}}}}


def _reply(request: Request, choose: Callable[[Published], _Text]) -> Response:
    """Answer with a text, or 304 where the client has it."""
    published = request.app.state.published
    assert isinstance(published, Published)
    text = choose(published)
    headers = {"etag": text.etag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == text.etag:
        return Response(status_code=304, headers=headers)
    return Response(text.content, headers=headers, media_type=text.media_type)


@router.get("/docs", summary="This page", response_class=Response, responses=_described(HTML))
def docs(request: Request) -> Response:
    """Return every operation and every schema of the API as a page for people."""
    return _reply(request, lambda published: published.page)


@router.get(STYLE_PATH, summary="Its style", response_class=Response, responses=_described(CSS))
def style(request: Request) -> Response:
    """Return the style of `/docs`."""
    return _reply(request, lambda published: published.style)


@router.get(
    "/openapi.json",
    summary="The OpenAPI document",
    response_class=Response,
    responses=_described(JSON),
)
def document(request: Request) -> Response:
    """Return the OpenAPI document."""
    return _reply(request, lambda published: published.document)
