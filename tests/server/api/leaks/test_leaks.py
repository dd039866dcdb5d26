"""Attempts to learn of another project's job: none succeeds, and each would without the scope."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

import pytest
from fastapi import FastAPI

from server.api.auth import principals
from server.core.context import Context
from server.core.visibility.scope import SYSTEM_SCOPE
from tests.server.api.conftest import BASE_URL
from tests.server.api.in_process import TestClient
from tests.server.api.leaks.attempts import Attempts
from tests.server.api.leaks.hidden_jobs import CANARY, MISSING, Attack, build
from tests.server.api.published import DOCUMENT
from tests.server.harness import BRINGS_CODE, Harness

ATTEMPTS = {
    name: method
    for name, method in inspect.getmembers(Attempts, inspect.isfunction)
    if not name.startswith("_")
}
ABOUT_ALL = frozenset(
    {
        "entries_of_the_queue",
        "forecast_for_another_job",
        "forks_of_an_own_checkpoint",
        "goodput_of_the_cluster",
        "guard_of_an_own_checkpoint",
        "holders_of_slots",
        "list_of_jobs",
        "list_of_operations",
        "list_of_projects",
        "reason_of_an_own_job",
    }
)
"""Attempts that name nothing: they have no counterpart for what does not exist."""
NO_SCOPE_NEEDED = frozenset(
    {
        "artifact_by_way_of_an_own_job",
        "files_of_a_hidden_job",
        "files_of_a_hidden_job_in_a_fork",
        "forecast_for_another_job",
        "guard_of_an_own_checkpoint",
    }
)
"""Attempts that fail without the scope, too."""


READS = frozenset(
    name
    for name, method in ATTEMPTS.items()
    if not {"post", "send"} & {*re.findall(r"by\.(\w+)", inspect.getsource(method))}
)
"""Attempts that change nothing."""
EVERYTHING = replace(SYSTEM_SCOPE)


@pytest.fixture
def attack(app: FastAPI, context: Context, harness: Harness) -> Attack:
    ids, token, own = build(context, harness)
    client = TestClient(app, base_url=BASE_URL, headers={"authorization": f"Bearer {token}"})
    return Attack(client, **own, ids=ids)


def read(name: str, attack: Attack) -> tuple[str, str]:
    """Return what an attempt reads of hidden objects, and of objects that do not exist."""
    attempt, missing = ATTEMPTS[name], replace(attack, ids=MISSING)
    hidden = attempt(Attempts(), attack)
    return attack.ids.masked(hidden), MISSING.masked(attempt(Attempts(), missing))


def learned(name: str, attack: Attack) -> bool:
    """Return whether the replies for hidden and missing objects differ, or have a name."""
    hidden, missing = read(name, attack)
    return bool(CANARY.search(hidden)) or hidden != missing


def test_there_are_sixty_attempts_and_more() -> None:
    assert len(ATTEMPTS) > 60
    assert ATTEMPTS.keys() > ABOUT_ALL
    assert len(READS) > 40


@BRINGS_CODE
def test_a_read_learns_nothing(attack: Attack) -> None:
    assert [name for name in READS if learned(name, attack)] == []


@BRINGS_CODE
@pytest.mark.parametrize("name", sorted(ATTEMPTS.keys() - READS))
def test_a_write_learns_nothing(attack: Attack, name: str) -> None:
    assert not learned(name, attack)


@BRINGS_CODE
def test_without_the_scope_a_read_would_learn(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(principals, "scope_of", lambda *_: EVERYTHING)
    vain = [name for name in sorted(READS - NO_SCOPE_NEEDED) if not learned(name, attack)]
    assert vain == []


@BRINGS_CODE
@pytest.mark.parametrize("name", sorted(ATTEMPTS.keys() - READS - NO_SCOPE_NEEDED))
def test_without_the_scope_a_write_would_learn(
    attack: Attack, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(principals, "scope_of", lambda *_: EVERYTHING)
    assert learned(name, attack)


@BRINGS_CODE
def test_no_read_has_a_name_of_a_hidden_job(attack: Attack) -> None:
    ids = {
        "{job_id}": attack.ids.job,
        "{checkpoint_id}": attack.ids.checkpoint,
        "{operation_id}": attack.ids.operation,
        "{shell_id}": attack.ids.shell,
        "{artifact_id}": attack.ids.artifact,
        "{digest}": attack.ids.pack,
        "/projects/{name}": f"/projects/{attack.ids.project}",
    }
    read_paths = 0
    for path, methods in DOCUMENT["paths"].items():
        if "get" not in methods or "/stream" in path or path.endswith("/schema/job"):
            continue
        filled = path
        for name, value in ids.items():
            filled = filled.replace(name, value)
        filled = re.sub(r"\{\w+\}", "node-1", filled)
        jobs = f"{attack.own_job},{attack.ids.job}"
        given: dict[str, str | int] = {"jobs": jobs, "text": "x", "interval_steps": 5}
        needed = [p["name"] for p in methods["get"].get("parameters", ()) if p.get("required")]
        query = {name: given[name] for name in needed if name in given}
        reply = attack.client.get(filled, params=query)
        if path.startswith("/api/"):
            assert reply.status_code != 422, (filled, reply.text)
            given_back = attack.ids.project if attack.ids.project in filled else ""
            assert not CANARY.search(reply.text.replace(given_back, "")), filled
            read_paths += 1
    assert read_paths > 40
