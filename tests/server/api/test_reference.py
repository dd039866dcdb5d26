"""`/docs` and `/openapi.json`: open to strangers, whole, and within the content security policy."""

from __future__ import annotations

import json
from html.parser import HTMLParser

from fastapi import FastAPI

from server.app.factory import openapi_text, routes_of
from server.app.reference import render
from tests.server.api.in_process import TestClient


class Page(HTMLParser):
    """Collects what a page refers to, and what a policy without inline code would block."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: set[str] = set()
        self.blocked: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in {"meta", "link"}:
            self.open.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links |= {given["href"] or ""} if "href" in given else set()
        if tag in {"script", "style"} or "style" in given or any(n.startswith("on") for n in given):
            self.blocked.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_document_is_open(anonymous: TestClient) -> None:
    text = anonymous.get("/openapi.json")
    assert text.status_code == 200
    assert text.json() == json.loads(openapi_text())
    again = anonymous.get("/openapi.json", headers={"if-none-match": text.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_shows_every_operation_and_schema(app: FastAPI, anonymous: TestClient) -> None:
    reply = anonymous.get("/docs")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in reply.headers["content-security-policy"]
    page = Page(reply.text)
    assert page.blocked == []
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert "`" not in reply.text
    assert "<code>page_token</code>" in reply.text
    for path, methods in routes_of(app):
        for method in methods:
            assert f"<code>{method} {path}</code></h3>" in reply.text
    assert {f"schema-{name}" for name in app.openapi()["components"]["schemas"]} <= set(page.ids)
    assert "<p>Needs the permission <code>nodes:read</code>.</p>" in reply.text
    assert "<p>Needs no token.</p>" in reply.text
    inner = {link[1:] for link in page.links if link.startswith("#")}
    assert inner <= set(page.ids)
    for link in page.links - {f"#{name}" for name in inner}:
        assert anonymous.get(link).status_code == 200, link


def test_texts_of_the_document_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    operation = {
        "tags": ["t"],
        "operationId": "o",
        "summary": evil,
        "description": evil,
        "x-permission": evil,
        "parameters": [
            {"name": evil, "in": "query", "schema": {"type": "string", "pattern": evil}}
        ],
        "responses": {"200": {"description": evil}},
    }
    page = Page(
        render(
            {
                "info": {"title": evil, "description": evil},
                "paths": {f"/{evil}": {"get": operation}},
                "components": {"schemas": {"X": {"enum": [evil], "description": evil}}},
            }
        )
    )
    assert page.blocked == []
