"""schemathesis tries every operation of the OpenAPI document: nothing crashes, nothing lies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck
from hypothesis import settings as examples
from hypothesis import strategies as st
from schemathesis.core import NotSet
from schemathesis.specs.openapi.checks import positive_data_acceptance

from server.app.factory import openapi_text
from server.auth.admin import ensure_admin_token
from server.context import Context
from server.database.engine import Database
from server.database.migrate import upgrade
from server.http.paging import encode
from server.settings import Settings
from tests.server.api.serving import PATIENCE, serving
from tests.server.harness import FakeClock, Harness

ID = "01jd3m6y0000000000000000a7"
KEYS: dict[str, str | int] = {
    "jobs": f"0{ID}",  # of the order and the id
    "requests": ID,
    "operations": ID,
    "tokens": ID,
    "attempts": 7,
    "events": 7,
    "nodes": "node-1",
    "queue": f"{100:03}{1_700_000_000_000_000}{ID}",  # of the priority, the time and the id
    "checkpoints": f"{ID}.a1.step-5",
}

# No schema can say which texts are tokens of a list: these are.
for listing, key in KEYS.items():
    schemathesis.openapi.format(f"page-token-of-{listing}", st.just(encode(listing, key)))

schema = schemathesis.openapi.from_dict(json.loads(openapi_text()))
schema.config.update(request_timeout=PATIENCE)


@dataclass(frozen=True)
class Served:
    """A server and its admin."""

    url: str
    headers: dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose streams end soon."""
    folder = tmp_path_factory.mktemp("schemathesis")
    url = f"sqlite:///{folder}/trainyard.db"
    clock = FakeClock()
    settings = Settings(database_url=url, state_dir=folder, stream_seconds=0.05)
    context = Context(settings, Database(url), clock)
    upgrade(context.database)
    Harness(context, clock).add_node(slots=8)
    path = ensure_admin_token(context)
    assert path is not None
    with serving(context) as root:
        yield Served(root, {"Authorization": f"Bearer {path.read_text().strip()}"})
    context.database.dispose()


@schema.parametrize()
@examples(max_examples=6, suppress_health_check=list(HealthCheck))
def test_every_operation_keeps_to_the_document(
    case: schemathesis.Case[Any], served: Served
) -> None:
    # What the rules between the fields of a body refuse, no schema can say.
    beyond: list[schemathesis.CheckFunction] = []
    if not isinstance(case.body, NotSet):
        beyond.append(positive_data_acceptance)
    case.call_and_validate(base_url=served.url, headers=served.headers, excluded_checks=beyond)
