"""The OpenAPI document is complete, correct and fresh."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from server.api.http.examples import ANSWERS, EXAMPLES
from server.app.factory import document, routes_of
from server.app.openapi import build
from tests.server.api.published import DOCUMENT


def references(value: Any) -> set[str]:
    """Return every `$ref` below a value."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(item) for item in value.values()))
    return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (path, method.upper()): operation
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    }


def test_every_route_is_described(app: FastAPI) -> None:
    routes = {(path, method) for path, methods in routes_of(app) for method in methods}
    assert set(operations()) == routes


def test_no_endpoint_works_on_the_event_loop(app: FastAPI) -> None:
    on_the_loop = {
        route.path
        for route in iter_route_contexts(app.routes)
        if inspect.iscoroutinefunction(route.endpoint)
    }
    # `/goodput` awaits the thread of the cluster ledger; heartbeats, reports, claims, submissions
    # await that of their group, `/packs`, artifacts and logouts by the issuer the body, logins the
    # threads of passwords, the others news.
    assert on_the_loop == {
        *("/api/v1/workers/heartbeat", "/api/v1/workers/attempts/{attempt_id}/claim"),
        "/api/v1/workers/attempts/{attempt_id}/report",
        "/api/v1/jobs",
        *("/healthz", "/api/v1/stream", "/api/v1/goodput", "/api/v1/workers/messages"),
        *("/api/v1/auth/session", "/api/v1/auth/token"),
        *("/api/v1/auth/password", "/api/v1/auth/invitation"),
        *("/api/v1/auth/oidc/backchannel-logout", "/api/v1/auth/oidc/link"),
        "/api/v1/packs",
        "/api/v1/workers/attempts/{attempt_id}/artifacts/{digest}",
        "/api/v1/jobs/{job_id}/shells/{shell_id}/output",
        "/api/v1/workers/attempts/{attempt_id}/shells/{shell_id}/input",
    }


def test_every_operation_has_a_summary_a_name_and_problems() -> None:
    names = [operation["operationId"] for operation in operations().values()]
    assert len(set(names)) == len(names)
    for key, operation in operations().items():
        assert operation["summary"], key
        assert operation["description"], key
        problem = operation["responses"]["default"]["content"]["application/problem+json"]
        assert problem["schema"] == {"$ref": "#/components/schemas/ProblemDetails"}


def test_every_body_is_described_with_examples_that_are_legal() -> None:
    bodies = {key: o["requestBody"] for key, o in operations().items() if "requestBody" in o}
    assert len(bodies) >= 8
    raw = {key for key, body in bodies.items() if "application/json" not in body["content"]}
    assert raw == {
        ("/api/v1/packs", "POST"),
        ("/api/v1/auth/oidc/backchannel-logout", "POST"),
        ("/api/v1/workers/attempts/{attempt_id}/artifacts/{digest}", "PUT"),
    }
    for key in bodies.keys() - raw:
        assert bodies[key]["content"]["application/json"]["examples"], key
    for model, examples in [*EXAMPLES.items(), *ANSWERS.items()]:
        for example in examples.values():
            model.model_validate_json(json.dumps(example))


def test_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    used = {reference.removeprefix("#/components/schemas/") for reference in references(DOCUMENT)}
    assert used <= set(schemas)
    assert set(schemas) <= used


def test_the_document_is_the_same_every_time(app: FastAPI) -> None:
    assert build(app.title, app.routes) == document() == DOCUMENT


@pytest.mark.parametrize("name", ["JobSpec", "JobSpecInput", "ResumeRequest", "Report"])
def test_fields_with_defaults_are_sent_always_and_asked_for_never(name: str) -> None:
    schema = DOCUMENT["components"]["schemas"][name]
    required = set(schema.get("required", ()))
    if name == "JobSpec":
        assert required == set(schema["properties"])
    elif name == "Report":
        assert required == {"protocol", "node", "identity"}
    else:
        assert required == set()
