"""Secrets of projects and users: who stores them, and that no response has a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import delete, select, update

from server.app.keys import ensure_key, rotate
from server.cluster.named_secrets.secret_uses import ChosenSecret, SecretValues, in_words, opened
from server.cluster.named_secrets.service import MAX_NAMES, MAX_SECRETS, VERSIONS_KEPT
from server.core.context import Context
from server.core.database.scheduler_tables import projects
from server.core.database.tables import events
from server.core.people.secret_tables import secret_versions, secrets
from server.core.secrets import KeyFileError
from tests.server.api.conftest import BASE_URL, admin, admin_token, anonymous, app  # noqa: F401
from tests.server.api.in_process import TestClient
from tests.server.members import OURS, THEIRS, add_projects, add_user
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.user_accounts.secret_views import MAX_SECRET_BYTES

API = "/api/v1"
OWN = "users/me"
VALUE = "correct horse battery staple"
Client = Callable[[str], TestClient]


@pytest.fixture
def as_user(app: FastAPI, context: Context) -> Client:  # noqa: F811 - the fixture above
    """Make a client with a token."""
    add_projects(context)

    def client(token: str) -> TestClient:
        headers = {"authorization": f"Bearer {token}"}
        return TestClient(app, base_url=BASE_URL, headers=headers)

    return client


@pytest.fixture
def ada(as_user: Client, context: Context) -> TestClient:
    """Make the client of a maintainer of `ours`."""
    return as_user(add_user(context, "ada", {OURS: "maintainer"}))


def put(client: TestClient, name: str, value: Any = VALUE, *, of: str = f"projects/{OURS}") -> Any:
    return client.put(f"{API}/{of}/secrets/{name}", json={"value": value})


def listed(client: TestClient, of: str = f"projects/{OURS}") -> dict[str, tuple[int, ...]]:
    found = client.get(f"{API}/{of}/secrets")
    assert found.status_code == 200, found.text
    return {each["name"]: tuple(each["versions"]) for each in found.json()["items"]}


def delivered(context: Context, version: int, name: str = "hf") -> str:
    """Return a value, as a claim gets it, or what is wrong."""
    found = values(context, version, name)
    if isinstance(found, KeyFileError):
        raise found
    return in_words(found) if isinstance(found, list) else found["X"]


def values(context: Context, version: int, name: str) -> SecretValues:
    with context.database.read() as connection:
        secret_id = connection.scalar(select(secrets.c.id).where(secrets.c.name == name))
        given = {"variable": "X", "name": name, "of": "project", "version": version}
        chosen = ChosenSecret.model_validate(given | {"secret_id": secret_id})
        return opened(context, connection, {"a": [chosen]})["a"]


def test_a_maintainer_stores_versions_and_no_response_has_a_value(
    ada: TestClient, context: Context
) -> None:
    first = put(ada, "hf")
    assert first.status_code == 200, first.text
    shown = first.json()
    assert (shown["name"], shown["version"], shown["versions"]) == ("hf", 1, [1])
    assert (shown["changed_by"], shown["warning"]) == ("ada", None)
    second = put(ada, "hf", "another value")
    assert second.json()["versions"] == [1, 2]
    everything = [first, second, ada.get(f"{API}/projects/{OURS}/secrets")]
    assert not [each for each in everything if VALUE in each.text or "another" in each.text]
    assert (delivered(context, 1), delivered(context, 2)) == (VALUE, "another value")


def test_stored_values_are_encrypted_and_events_have_none(
    ada: TestClient, context: Context
) -> None:
    put(ada, "hf")
    ada.delete(f"{API}/projects/{OURS}/secrets/hf")
    with context.database.read() as connection:
        query = select(events.c.message, events.c.data, events.c.project)
        rows = connection.execute(query.where(events.c.kind == "secret_changed")).all()
        assert connection.execute(select(secret_versions)).all() == []
    assert [row.message for row in rows] == ["secret hf has version 1", "secret hf is deleted"]
    assert {row.project for row in rows} == {OURS}
    put(ada, "hf")
    with context.database.read() as connection:
        assert VALUE not in repr(connection.execute(select(secret_versions)).all())


def test_a_deleted_secret_continues_its_numbers(ada: TestClient) -> None:
    put(ada, "hf")
    path = f"{API}/projects/{OURS}/secrets/hf"
    assert (ada.delete(path).status_code, ada.delete(path).status_code) == (204, 404)
    assert listed(ada) == {}
    assert put(ada, "hf").json()["versions"] == [2]


def test_a_list_survives_a_deletion_between_its_queries(ada: TestClient, context: Context) -> None:
    put(ada, "a")
    put(ada, "b")
    with context.database.write() as connection:
        first = select(secrets.c.id).where(secrets.c.name == "a").scalar_subquery()
        connection.execute(delete(secret_versions).where(secret_versions.c.secret_id == first))
    assert list(listed(ada)) == ["b"]


def test_old_versions_are_deleted(ada: TestClient, context: Context) -> None:
    for number in range(VERSIONS_KEPT + 2):
        put(ada, "hf", f"value number {number}")
    assert listed(ada) == {"hf": tuple(range(3, VERSIONS_KEPT + 3))}
    assert delivered(context, 2) == "env.X: version 2 of the secret 'hf' was deleted"


@pytest.mark.parametrize("role", ["viewer", "member"])
def test_others_store_nothing(
    as_user: Client, ada: TestClient, context: Context, role: str
) -> None:
    put(ada, "hf")
    bob = as_user(add_user(context, "bob", {OURS: role, THEIRS: "maintainer"}))
    assert put(bob, "hf").status_code == 403
    assert bob.delete(f"{API}/projects/{OURS}/secrets/hf").status_code == 403
    seen = bob.get(f"{API}/projects/{OURS}/secrets")
    assert seen.status_code == (200 if role == "member" else 403)
    assert listed(ada) == {"hf": (1,)}


def test_a_hidden_project_is_an_unknown_one(ada: TestClient) -> None:
    for project in (THEIRS, "unknown"):
        of = f"projects/{project}"
        for found in (
            ada.get(f"{API}/{of}/secrets"),
            put(ada, "hf", of=of),
            ada.delete(f"{API}/{of}/secrets/hf"),
        ):
            assert found.status_code == 404
            assert found.json()["detail"] == f"no project has the name {project!r}"


def test_own_secrets_are_seen_by_their_user_alone(
    as_user: Client, ada: TestClient, context: Context
) -> None:
    bob = as_user(add_user(context, "bob", {OURS: "maintainer"}))
    assert put(ada, "hf", of=OWN).status_code == 200
    assert (listed(ada, OWN), listed(bob, OWN), listed(bob)) == ({"hf": (1,)}, {}, {})
    assert bob.delete(f"{API}/{OWN}/secrets/hf").status_code == 404
    assert ada.delete(f"{API}/{OWN}/secrets/hf").status_code == 204


def test_tokens_with_scopes_and_the_built_in_user_store_no_own_secret(
    as_user: Client,
    context: Context,
    admin_token: str,  # noqa: F811 - the fixture above
) -> None:
    scoped = as_user(add_user(context, "eve", {OURS: "member"}, scopes=(Permission.JOBS_WRITE,)))
    assert put(scoped, "hf", of=OWN).status_code == 403
    refused = put(as_user(admin_token), "hf", of=OWN)
    assert refused.status_code == 409
    assert "store a secret of a project" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ("", "at least 1 item"),
        ("tell\0me", "NUL"),
        ("€" * (MAX_SECRET_BYTES // 3 + 1), "65,538 bytes; legal: 1 to 65,536"),
        (["tell me"], "string"),
        ({"tell": "me"}, "string"),
    ],
)
def test_an_error_names_the_field_and_not_the_value(
    ada: TestClient, value: Any, detail: str
) -> None:
    refused = put(ada, "hf", value)
    assert refused.status_code == 422
    (problem,) = refused.json()["errors"]
    assert problem["pointer"] == "/value"
    assert detail in problem["detail"]
    assert "tell" not in refused.text
    assert listed(ada) == {}


def test_a_body_of_another_form_is_not_repeated(ada: TestClient) -> None:
    path = f"{API}/projects/{OURS}/secrets/hf"
    for content in (b'{"value": "tell me"', b'"tell me"', b'{"valu": "tell me"}'):
        refused = ada.put(path, content=content, headers={"content-type": "application/json"})
        assert refused.status_code in (400, 422)
        assert "tell me" not in refused.text


def test_a_value_in_the_url_is_ignored(ada: TestClient) -> None:
    path = f"{API}/projects/{OURS}/secrets/hf?value=tell-me"
    assert ada.put(path, json={}).status_code == 422
    assert listed(ada) == {}


def test_a_short_value_has_a_warning(ada: TestClient) -> None:
    assert put(ada, "pin", "1234567").json()["warning"] == (
        "outputs show this value unmasked, because it has fewer than 8 bytes"
    )


def test_a_project_has_a_maximum_number_of_secrets(ada: TestClient, context: Context) -> None:
    now = context.now()
    row = {"project": OURS, "version": 1, "created_at": now}
    rows = [{**row, "id": context.new_id(), "name": f"s{n}"} for n in range(MAX_SECRETS)]
    with context.database.write() as connection:
        connection.execute(secrets.insert(), rows)
    assert put(ada, "one-more").status_code == 409
    assert put(ada, "s1").json()["version"] == 2


def test_names_of_deleted_secrets_are_bounded(ada: TestClient, context: Context) -> None:
    now = context.now()
    row = {"project": OURS, "version": 1, "created_at": now, "deleted_at": now}
    rows = [{**row, "id": context.new_id(), "name": f"s{n}"} for n in range(MAX_NAMES)]
    with context.database.write() as connection:
        connection.execute(secrets.insert(), rows)
    refused = put(ada, "one-more")
    assert refused.status_code == 409
    assert "use the name of a deleted one" in refused.json()["detail"]
    assert put(ada, "s1").json()["version"] == 2


def test_the_end_of_a_project_ends_its_secrets(ada: TestClient, context: Context) -> None:
    put(ada, "hf")
    with context.database.write() as connection:
        connection.execute(delete(projects).where(projects.c.name == OURS))
    with context.database.read() as connection:
        assert connection.execute(select(secrets)).all() == []
        assert connection.execute(select(secret_versions)).all() == []


# ---- keys ----------------------------------------------------------------------------------------


def test_a_rotation_encrypts_secrets_again(ada: TestClient, context: Context) -> None:
    put(ada, "hf")
    put(ada, "hf", "second value")
    before = stored(context)
    assert rotate(context) == 2
    assert set(before).isdisjoint(stored(context))
    assert rotate(context) == 2
    assert delivered(context, 2) == "second value"


def test_a_lost_key_is_not_replaced_while_a_secret_exists(
    ada: TestClient, context: Context
) -> None:
    put(ada, "hf")
    context.secrets.path.unlink()
    problem = ensure_key(context)
    assert problem is not None
    assert not context.secrets.path.exists()
    assert put(ada, "hf").status_code == 503


def test_a_ciphertext_is_bound_to_its_secret(ada: TestClient, context: Context) -> None:
    """A writer of the database cannot deliver the value of another secret."""
    put(ada, "hf")
    put(ada, "wandb", "another value")
    ciphertext = stored(context)[0]
    with context.database.write() as connection:
        connection.execute(update(secret_versions).values(ciphertext=ciphertext))
    found = [delivered(context, 1, name) for name in ("hf", "wandb")]
    (damaged,) = (each for each in found if each.startswith("env.X: "))
    assert damaged.endswith("is damaged: its stored value is of another secret")


def stored(context: Context) -> list[str]:
    with context.database.read() as connection:
        return list(connection.scalars(select(secret_versions.c.ciphertext)))


@pytest.mark.parametrize("name", ["a b", "-x", "x" * 81, "k\u00e9y", "a%0Ab"])
@pytest.mark.parametrize("of", [f"projects/{OURS}", OWN])
def test_an_illegal_name_is_refused_with_what_is_legal(ada: TestClient, name: str, of: str) -> None:
    refused = put(ada, name, of=of)
    assert refused.status_code == 422
    (problem,) = refused.json()["errors"]
    assert problem["pointer"] == "path/secret"
    assert "legal: letters, digits" in problem["detail"]
    assert listed(ada, of) == {}
