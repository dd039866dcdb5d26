"""Public documents of the API: the OpenAPI document and a reference page, each made once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from server.api.http.responses import JSON
from server.app.reference_page import STYLE, STYLE_PATH, render

HTML = "text/html"
CSS = "text/css"

router = APIRouter(tags=["meta"])


class Published:
    """The public documents, each made on its first use."""

    def __init__(self, document: Callable[[], Mapping[str, Any]]) -> None:
        self._document = document

    @cached_property
    def document(self) -> bytes:
        """The OpenAPI document."""
        return orjson.dumps(self._document())

    @cached_property
    def page(self) -> bytes:
        """The reference page as HTML."""
        return render(self._document()).encode()


def _described(media_type: str) -> dict[int | str, dict[str, Any]]:
    kind = "object" if media_type == JSON else "string"
    return {200: {"content": {media_type: {"schema": {"type": kind}}}}}


def _published(request: Request) -> Published:
    published = request.app.state.published
    assert isinstance(published, Published)
    return published


def _reply(request: Request, content: bytes, media_type: str) -> Response:
    """Respond with a text, or with 304 if the client has the newest version."""
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"etag": etag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


@router.get("/docs", summary="This page", response_class=Response, responses=_described(HTML))
def docs(request: Request) -> Response:
    """Return all operations and schemas of the API as an HTML page."""
    return _reply(request, _published(request).page, HTML)


@router.get(STYLE_PATH, summary="Its style", response_class=Response, responses=_described(CSS))
def style(request: Request) -> Response:
    """Return the style of `/docs`."""
    return _reply(request, STYLE.encode(), CSS)


@router.get(
    "/openapi.json",
    summary="The OpenAPI document",
    response_class=Response,
    responses=_described(JSON),
)
def document(request: Request) -> Response:
    """Return the OpenAPI document."""
    return _reply(request, _published(request).document, JSON)
