"""schemathesis tests every operation of the OpenAPI document: no crash, no undocumented answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core import NotSet
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from server.api.auth.admin import ensure_admin_token
from server.api.http.paging import encode
from server.core.context import Context
from server.core.database.engine import Database
from server.core.database.migrate import upgrade
from server.core.settings import Settings
from tests.server.api.published import DOCUMENT
from tests.server.api.serving import PATIENCE, serving
from tests.server.clock import FakeClock
from tests.server.harness import Harness

ID = "01jd3m6y0000000000000000a7"
KEYS: dict[str, str | int] = {
    "jobs": f"0{ID}0",  # of the order, the id and the priority
    "requests": ID,
    "operations": ID,
    "tokens": ID,
    "sessions": ID,
    "users": "ada",
    "attempts": 7,
    "events": 7,
    "nodes": "node-1",
    "projects": "project-1",
    "members": "ada",
    "service-accounts": "nightly@default",
    "service-account-tokens": ID,
    "groups": "/research/vision",
    "secrets": "hf",
    "sources": "slurm-a100",
    "node-requests": ID,
    "queue": f"{100:03}{0:016x}{1_700_000_000_000_000}{ID}",  # priority, tag, time and id
    "checkpoints": f"{ID}.a1.step-5",
    "artifacts": ID,
    "audit": 7,
}

# No schema can express which texts are page tokens: these are.
for listing, key in KEYS.items():
    schemathesis.openapi.format(f"page-token-of-{listing}", st.just(encode(listing, key)))

schemathesis.serializer.alias("application/gzip", "application/octet-stream")
schema = schemathesis.openapi.from_dict(DOCUMENT)
schema.config.update(request_timeout=PATIENCE)
REFUSALS = schema.config.checks.negative_data_rejection
REFUSALS.expected_statuses = [*REFUSALS.expected_statuses, "413", "431"]
OPERATIONS = {
    found.ok().label: found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)
}
NEVER_WRONG = {"GET /api/v1/auth/ways"}
"""Operations without anything to get wrong, as pages: no parameter, no body, no token."""
CASES = [
    (label, mode)
    for label in OPERATIONS
    for mode in GenerationMode
    if mode.is_positive or ("/api/" in label and label not in NEVER_WRONG)
]
REFUSING = {"GET /api/v1/audit", "GET /api/v1/goodput", "GET /api/v1/nodes/{name}/metrics"}
"""Operations that refuse queries allowed by the document: no schema can express which days have
passed, or which series exist."""
EXAMPLES = 6
"""Of each case."""


def test_each_list_has_a_page_token() -> None:
    found = set(re.findall(r'"page-token-of-([a-z-]+)"', json.dumps(DOCUMENT)))
    assert found == KEYS.keys()


@dataclass(frozen=True)
class Served:
    """A server and its admin."""

    url: str
    headers: dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with short streams."""
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


@pytest.mark.parametrize(("label", "mode"), CASES)
def test_every_operation_keeps_to_the_document(
    label: str, mode: GenerationMode, served: Served
) -> None:
    # Not by `schema.parametrize`: its tests have one node id, and xdist would run one of them.
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    @examples(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    def check(case: schemathesis.Case[Any]) -> None:
        beyond: list[schemathesis.CheckFunction] = []
        # No schema can express rules between the fields of a body.
        if label in REFUSING or not isinstance(case.body, NotSet):
            beyond.append(positive_data_acceptance)
        case.call_and_validate(base_url=served.url, headers=served.headers, excluded_checks=beyond)

    check()
