"""Paths and query parameters: every route refuses or does not find unknown ones."""

from __future__ import annotations

import re

import pytest
from fastapi import FastAPI

from server.app.factory import routes_of
from tests.server.api.in_process import TestClient

JOBS = "/api/v1/jobs"


def test_an_unknown_parameter_is_refused_with_the_legal_ones(client: TestClient) -> None:
    (problem,) = client.get(f"{JOBS}?stat=running").json()["errors"]
    assert problem["detail"].startswith("unknown parameter; legal: ")
    assert {"state", "tag", "page_token", "page_size"} <= set(
        problem["detail"].partition("legal: ")[2].split(", ")
    )
    assert client.post(f"{JOBS}?dry=1", json={}).status_code == 422
    assert client.get(JOBS).json()["items"] == []


@pytest.mark.parametrize("job_id", ["0" * 26, "no-id", "8" * 26, "0" * 27, "a%20b"])
def test_an_unknown_job_is_not_found_on_any_path(
    app: FastAPI, client: TestClient, job_id: str
) -> None:
    tried = 0
    for path, methods in routes_of(app):
        if "{job_id}" not in path:
            continue
        url = re.sub(r"\{\w+\}", "0" * 26, path.replace("{job_id}", job_id))
        queries = {"/logs/search": "?text=x", "/goodput/what-if": "?interval_steps=5"}
        query = next((q for end, q in queries.items() if url.endswith(end)), "")
        for method in methods:
            bodies: dict[str, dict[str, object]] = {
                "/requests": {"kind": "save"},
                "/priority": {"priority": 1},
                "/owner": {"owner": "ada"},
                "/shells": {"argv": ["ls"]},
                "/input": {"start": 0, "content": ""},
                "/points": {"start": 0, "series": [{"name": "loss", "points": [[1, 0.0, 0.5]]}]},
            }
            body = next((b for end, b in bodies.items() if url.endswith(end)), {})
            sent = body if method in ("POST", "PUT") else None
            response = client.request(method, url + query, json=sent)
            assert response.status_code == 404, (method, url, response.text)
            tried += 1
    assert tried > 12
