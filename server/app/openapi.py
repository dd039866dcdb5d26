"""The OpenAPI document of FastAPI, completed with request bodies, problems and examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from server.api.audit.audited_operations import audits_of
from server.api.auth.declarations import accesses_of, calls_of
from server.api.auth.dependencies import SCHEMES, schemes_of
from server.api.http.examples import EXAMPLES
from server.api.http.middleware import API_PREFIX
from server.api.http.problems import MEDIA_TYPE
from server.api.http.request_body import JsonBody
from trainyard.protocol.rest.common import ProblemDetails
from trainyard.protocol.rest.events import StreamItem

VERSION = "1"
REFERENCE = "#/components/schemas/{model}"
DESCRIPTION = (
    "Submit, watch, stop and resume distributed training jobs. Every refusal is an RFC 9457 "
    "problem document; lists are paged by `page_token` and `page_size`."
)
TITLES = {
    401: "No token, or one that is unknown, expired or revoked",
    403: "A token that may not do this",
    404: "Nothing has this id",
    409: "The present state forbids it",
    413: "The body is over the limit",
    415: "The body is not JSON",
    422: "Something in the request is wrong; `errors` names each place",
    429: "Too many logins of this address failed; `Retry-After` is in seconds",
}

Document = dict[str, Any]


def build(title: str, routes: Sequence[BaseRoute]) -> Document:
    """Return the OpenAPI document of an application; equal routes give an equal document."""
    document = get_openapi(title=title, version=VERSION, description=DESCRIPTION, routes=routes)
    schemas: Document = document["components"]["schemas"]
    # Schemas of FastAPI's own errors; this API returns problem documents.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    _add_stream_items(schemas)
    accesses = accesses_of(routes)
    audits = {each.id: each.audited for each in audits_of(routes).values()}
    calls = {
        (route.path, method.lower()): [*calls_of(route.dependant)]
        for route in iter_route_contexts(routes)
        for method in route.methods or ()
    }
    bodies = {
        key: call for key, some in calls.items() for call in some if isinstance(call, JsonBody)
    }
    names = _add_schemas(schemas, {ProblemDetails, *(body.model for body in bodies.values())})
    # The router lists the routes of workers first, the document lists them last for its readers.
    paths = sorted(document["paths"].items(), key=lambda item: "/workers/" in item[0])
    document["paths"] = dict(paths)
    for path, operations in paths:
        for method, operation in operations.items():
            named = {scheme for call in calls[path, method] for scheme in schemes_of(call)}
            _add_security(operation, [scheme for scheme in SCHEMES if scheme in named])
            operation["x-permission"] = accesses[path, method.upper()].value
            operation["x-audited"] = audits[operation["operationId"]].value
            if (path, method) in bodies:
                operation["requestBody"] = _request_body(bodies[path, method], names)
            _add_problems(path, method, operation)
    document["components"]["schemas"] = dict(sorted(schemas.items()))
    document["components"]["securitySchemes"] = SCHEMES
    return document


def _add_stream_items(schemas: Document) -> None:
    """Add the schemas of the stream's items, because no route returns these items as JSON."""
    adapter: TypeAdapter[StreamItem] = TypeAdapter(StreamItem)
    described = adapter.json_schema(mode="serialization", ref_template=REFERENCE)
    for name, schema in {**described.pop("$defs"), "StreamItem": described}.items():
        schemas.setdefault(name, _without_none(schema))


def _add_schemas(schemas: Document, models: set[type[BaseModel]]) -> dict[type[BaseModel], str]:
    """Add the schemas of the request bodies, and return the schema name of each body.

    A response has every field, while a request may omit fields with a default. If a model needs
    both schemas, the name of the request's schema ends in `Input`.
    """
    ordered = sorted(models, key=lambda model: model.__name__)
    _, described = models_json_schema([(m, "validation") for m in ordered], ref_template=REFERENCE)
    found: dict[str, Document] = {n: _without_none(s) for n, s in described["$defs"].items()}
    other = {name for name in found if schemas.get(name, found[name]) != found[name]}
    while True:
        grown = {name for name in found if name in schemas and _refers(found[name], other)}
        if grown <= other:
            break
        other |= grown
    for name, schema in found.items():
        schemas[_input(name, other)] = _renamed(schema, other)
    return {model: _input(model.__name__, other) for model in ordered}


def _without_none(value: Any) -> Any:
    """Remove `default: null`, as FastAPI does."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _input(name: str, other: set[str]) -> str:
    return f"{name}Input" if name in other else name


def _reference(name: str) -> str:
    return json.dumps(REFERENCE.format(model=name))


def _refers(schema: Document, names: set[str]) -> bool:
    text = json.dumps(schema)
    return any(_reference(name) in text for name in names)


def _renamed(schema: Document, other: set[str]) -> Document:
    text = json.dumps(schema)
    for name in other:
        text = text.replace(_reference(name), _reference(_input(name, other)))
    renamed: Document = json.loads(text)
    return renamed


def _request_body(body: JsonBody[Any], names: Mapping[type[BaseModel], str]) -> Document:
    schema = {"$ref": REFERENCE.format(model=names[body.model])}
    examples = {name: {"value": value} for name, value in EXAMPLES[body.model].items()}
    return {
        "required": body.default is None,
        "content": {"application/json": {"schema": schema, "examples": examples}},
    }


def _add_security(operation: Document, schemes: Sequence[str]) -> None:
    if not schemes:
        return
    operation["security"] = [{scheme: []} for scheme in schemes]
    if "parameters" in operation:  # move these keys after `security`, the order that FastAPI uses
        operation["parameters"] = operation.pop("parameters")
        operation["responses"] = operation.pop("responses")


def _add_problems(path: str, method: str, operation: Document) -> None:
    has_body = "requestBody" in operation
    is_secured = "security" in operation
    statuses = {
        401: is_secured,
        403: is_secured,
        404: "{" in path,
        409: is_secured and method != "get",
        413: has_body,
        415: has_body,
        422: has_body or path.startswith(API_PREFIX),
        429: has_body and not is_secured,
    }
    responses = operation["responses"]
    responses.pop("422", None)
    for status, applies in statuses.items():
        if applies:
            responses[str(status)] = _problem(TITLES[status])
    responses["default"] = _problem("Any other error")


def _problem(description: str) -> Document:
    schema = {"$ref": REFERENCE.format(model=ProblemDetails.__name__)}
    return {"description": description, "content": {MEDIA_TYPE: {"schema": schema}}}
