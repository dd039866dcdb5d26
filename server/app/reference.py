"""Public documents of the API: the OpenAPI document, and its HTML page without scripts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from html import escape
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from server.api.auth.dependencies import Caller, public
from server.api.http.responses import JSON

Document = Mapping[str, Any]

HTML, CSS = "text/html", "text/css"
STYLE_PATH = "/docs.css"
STYLE = """\
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 70rem; padding: 1rem;
  overflow-wrap: anywhere; }
code, pre { font: 13px/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid var(--line); }
section { border-top: 1px solid var(--line); margin-top: 1.5rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; }
tr { border-top: 1px solid var(--line); }
nav ul { columns: 22rem; list-style: none; padding: 0; }
:target { outline: 2px solid; outline-offset: .4rem; }
"""
CODE = re.compile(r"`([^`]+)`")
LIMITS = (
    *("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "format", "pattern", "default"),
)
"""Properties of a schema that the page shows after its type."""

router = APIRouter(tags=["meta"])

CALLERS: Mapping[str, str] = {
    Caller.PUBLIC: "Needs no token.",
    Caller.PERSON: "Needs a token of a person, with any permissions.",
    Caller.USER: "Needs a token or session of a user; of the built-in user, with tokens:admin.",
    Caller.NODE: "Needs the token of a node.",
    Caller.JOINER: "Needs a join token, the join secret of a pilot, or the token of a node.",
    Caller.PILOT: "Needs the join secret of a pilot.",
    Caller.SOURCE: "Needs the token of a source.",
    Caller.SOURCE_JOINER: "Needs a join token, or the token of a source.",
    Caller.ATTEMPT: "Needs the token of an attempt.",
}
"""Sentence for each kind of caller that needs no permission."""


def _described(media_type: str) -> dict[int | str, dict[str, Any]]:
    kind = "object" if media_type == JSON else "string"
    return {200: {"content": {media_type: {"schema": {"type": kind}}}}}


@router.get(
    "/docs",
    dependencies=[public],
    summary="This page",
    response_class=Response,
    responses=_described(HTML),
)
def docs(request: Request) -> Response:
    """Return all operations and schemas of the API as an HTML page."""
    return _reply(request, _page(request.app.openapi), HTML)


@router.get(
    STYLE_PATH,
    dependencies=[public],
    summary="Its style",
    response_class=Response,
    responses=_described(CSS),
)
def style(request: Request) -> Response:
    """Return the style of `/docs`."""
    return _reply(request, STYLE.encode(), CSS)


@router.get(
    "/openapi.json",
    dependencies=[public],
    summary="The OpenAPI document",
    response_class=Response,
    responses=_described(JSON),
)
def document(request: Request) -> Response:
    """Return the OpenAPI document."""
    return _reply(request, _text_of(request.app.openapi), JSON)


def _reply(request: Request, content: bytes, media_type: str) -> Response:
    """Respond with a text, or with 304 if the client has the newest version."""
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"etag": etag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


@cache
def _text_of(document: Callable[[], Document]) -> bytes:
    return orjson.dumps(document())


@cache
def _page(document: Callable[[], Document]) -> bytes:
    return render(document()).encode()


def render(document: Document) -> str:
    """Return the page of an OpenAPI document."""
    by_tag: dict[str, list[tuple[str, Document]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = f"<code>{method.upper()} {escape(path)}</code>"
            by_tag.setdefault(escape(operation["tags"][0]), []).append((name, operation))
    return "".join(_parts(document, by_tag))


def _parts(
    document: Document, by_tag: Mapping[str, Iterable[tuple[str, Document]]]
) -> Iterator[str]:
    title = f"{escape(document['info']['title'])} API"
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}</title><link rel="stylesheet" href="{STYLE_PATH}"></head><body>'
        f"<h1>{title}</h1><p>{_text(document['info'])}</p>"
        '<p>The same for programs: <a href="/openapi.json">/openapi.json</a>.</p><nav>'
    )
    for tag, found in by_tag.items():
        yield f"<h3>{tag}</h3><ul>"
        for name, operation in found:
            yield f'<li><a href="#{escape(operation["operationId"])}">{name}</a></li>'
        yield "</ul>"
    yield '<p><a href="#schemas">Schemas</a></p></nav>'
    for tag, found in by_tag.items():
        yield f"<h2>{tag}</h2>"
        for name, operation in found:
            yield from _operation(name, operation)
    yield '<h2 id="schemas">Schemas</h2>'
    for name, schema in document["components"]["schemas"].items():
        yield from _schema(escape(name), schema)
    yield "</body></html>\n"


def _operation(name: str, operation: Document) -> Iterator[str]:
    yield f'<section id="{escape(operation["operationId"])}"><h3>{name}</h3>'
    yield f"<p><b>{escape(operation['summary'])}.</b> {_text(operation)}</p>"
    access = operation["x-permission"]
    yield (
        f"<p>{escape(CALLERS[access])}</p>"
        if access in CALLERS
        else (f"<p>Needs the permission <code>{escape(access)}</code>.</p>")
    )
    parameters = (
        _row(f"<code>{escape(p['name'])}</code> ({escape(p['in'])})", p["schema"], about=p)
        for p in operation.get("parameters", ())
    )
    yield _table("Parameters", parameters)
    body = operation.get("requestBody")
    if body is not None:
        yield f"<h4>Body</h4><p>{'' if body['required'] else 'Optional. '}{_contents(body)}</p>"
    answers = operation["responses"].items()
    yield _table("Answers", ((escape(s), _text(each), _contents(each)) for s, each in answers))
    yield "</section>"


def _schema(name: str, schema: Document) -> Iterator[str]:
    yield f'<section id="schema-{name}"><h3>{name}</h3><p>{_text(schema)}</p>'
    required = schema.get("required", ())
    if "properties" not in schema:
        yield f"<p>{_type(schema)}</p>"
    fields = (
        _row(f"<code>{escape(field)}</code>", value, about={**value, "required": field in required})
        for field, value in schema.get("properties", {}).items()
    )
    yield _table("Fields", fields)
    yield "</section>"


def _row(name: str, schema: Document, *, about: Document) -> tuple[str, ...]:
    return name, _type(schema), "required" if about.get("required") else "", _text(about)


def _table(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<h4>{title}</h4><table>{body}</table>" if body else ""


def _contents(part: Document) -> str:
    """Return the media types of a body or response, with their schemas and examples."""
    shown = []
    for media_type, content in part.get("content", {}).items():
        schema = _type(content["schema"]) if "schema" in content else ""
        shown.append(f"<code>{escape(media_type)}</code> {schema}")
        for name, example in content.get("examples", {}).items():
            text = escape(json.dumps(example["value"], indent=2, ensure_ascii=False))
            shown.append(f"<details><summary>{escape(name)}</summary><pre>{text}</pre></details>")
    return " ".join(shown)


def _text(part: Document) -> str:
    """Return a description as HTML; text in backticks becomes code."""
    return CODE.sub(r"<code>\1</code>", escape(part.get("description", "")))


def _type(schema: Document) -> str:
    """Return a short text for a schema, with links to named schemas."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return " or ".join(map(_type, schema[union]))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        return " or ".join(map(_value, values))
    inner = schema.get("additionalProperties")
    if "items" in schema:
        kind = f"list of {_type(schema['items'])}"
    elif isinstance(inner, Mapping):
        kind = f"map of {_type(inner)}"
    else:
        kind = escape(str(schema.get("type", "any value")))
    limits = ", ".join(f"{key} {_value(schema[key])}" for key in LIMITS if key in schema)
    return f"{kind} ({limits})" if limits else kind


def _value(value: object) -> str:
    return f"<code>{escape(json.dumps(value, ensure_ascii=False))}</code>"
