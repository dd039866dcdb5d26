"""`/docs`: the OpenAPI document as one HTML page, without scripts or third-party files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Document = Mapping[str, Any]

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
LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "minLength": "min. length",
    "maxLength": "max. length",
    "minItems": "min. items",
    "maxItems": "max. items",
    "format": "format",
    "pattern": "pattern",
    "default": "default",
}


def render(document: Document) -> str:
    """Return the page of an OpenAPI document."""
    return "".join(_page(document))


def _page(document: Document) -> Iterator[str]:
    info = document["info"]
    title = f"{escape(info['title'])} API"
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}</title><link rel="stylesheet" href="{STYLE_PATH}"></head><body>'
        f"<h1>{title}</h1><p>{_text(info)}</p>"
        '<p>The same for programs: <a href="/openapi.json">/openapi.json</a>.</p>'
    )
    by_tag: dict[str, list[tuple[str, str, Document]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    yield from _contents(by_tag)
    for tag, found in by_tag.items():
        yield f"<h2>{escape(tag)}</h2>"
        for method, path, operation in found:
            yield from _operation(method, path, operation)
    yield '<h2 id="schemas">Schemas</h2>'
    for name, schema in document["components"]["schemas"].items():
        yield from _schema(name, schema)
    yield "</body></html>\n"


def _contents(by_tag: Mapping[str, list[tuple[str, str, Document]]]) -> Iterator[str]:
    yield "<nav>"
    for tag, found in by_tag.items():
        yield f"<h3>{escape(tag)}</h3><ul>"
        for method, path, operation in found:
            link = f"#{escape(operation['operationId'])}"
            yield f'<li><a href="{link}"><code>{method} {escape(path)}</code></a></li>'
        yield "</ul>"
    yield '<p><a href="#schemas">Schemas</a></p></nav>'


def _operation(method: str, path: str, operation: Document) -> Iterator[str]:
    yield (
        f'<section id="{escape(operation["operationId"])}">'
        f"<h3><code>{method} {escape(path)}</code></h3>"
        f"<p><b>{escape(operation['summary'])}.</b> {_text(operation)}</p>"
    )
    if "security" not in operation:
        yield "<p>Needs no token.</p>"
    yield from _table(
        "Parameters",
        (
            (
                f"<code>{escape(p['name'])}</code> ({escape(p['in'])})",
                _type(p["schema"]),
                "required" if p.get("required") else "",
                _text(p),
            )
            for p in operation.get("parameters", ())
        ),
    )
    body = operation.get("requestBody")
    if body is not None:
        yield f"<h4>Body</h4><p>{'' if body['required'] else 'Optional. '}"
        yield f"{_contents_of(body)}</p>"
    yield from _table(
        "Answers",
        (
            (escape(status), _text(answer), _contents_of(answer))
            for status, answer in operation["responses"].items()
        ),
    )
    yield "</section>"


def _contents_of(part: Document) -> str:
    """Return the media types of a body or response, with their schemas and examples."""
    shown = []
    for media_type, content in part.get("content", {}).items():
        schema = _type(content["schema"]) if "schema" in content else ""
        shown.append(f"<code>{escape(media_type)}</code> {schema}")
        for name, example in content.get("examples", {}).items():
            text = escape(json.dumps(example["value"], indent=2, ensure_ascii=False))
            shown.append(f"<details><summary>{escape(name)}</summary><pre>{text}</pre></details>")
    return " ".join(shown)


def _schema(name: str, schema: Document) -> Iterator[str]:
    yield f'<section id="schema-{escape(name)}"><h3>{escape(name)}</h3><p>{_text(schema)}</p>'
    properties = schema.get("properties")
    if properties is None:
        yield f"<p>{_type(schema)}</p>"
    required = set(schema.get("required", ()))
    yield from _table(
        "Fields",
        (
            (
                f"<code>{escape(field)}</code>",
                _type(value),
                "required" if field in required else "",
                _text(value),
            )
            for field, value in (properties or {}).items()
        ),
    )
    yield "</section>"


def _table(title: str, rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    if body:
        yield f"<h4>{title}</h4><table>{body}</table>"


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
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
    limits = [
        f"{words} <code>{escape(json.dumps(schema[key], ensure_ascii=False))}</code>"
        for key, words in LIMITS.items()
        if key in schema
    ]
    kind = _container(schema) or escape(str(schema.get("type", "any value")))
    return f"{kind} ({', '.join(limits)})" if limits else kind


def _container(schema: Document) -> str:
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    inner = schema.get("additionalProperties")
    return f"map of {_type(inner)}" if isinstance(inner, Mapping) else ""
