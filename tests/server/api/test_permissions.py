"""Every operation with every kind of token: 401, 403 or past authorization, as declared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from sqlalchemy import insert, update

from server.api.auth.browser_sessions import store_session
from server.api.auth.declarations import UndeclaredAccessError, accesses_of
from server.api.auth.dependencies import SESSION_COOKIE, Caller, may, person
from server.api.auth.permissions import (
    ALL,
    MEANINGS,
    WITHOUT_SCOPES,
    held_by_role,
)
from server.api.auth.service import create_token
from server.api.auth.tokens import TokenKind
from server.app import factory
from server.core.context import Context
from server.core.database.tables import tokens
from server.core.people.user_tables import users
from server.core.subject import Actor
from tests.server.api.in_process import TestClient
from tests.server.api.published import DOCUMENT
from tests.server.api.test_access import ORIGIN, of_kind
from tests.server.clock import FakeClock
from tests.server.harness import Harness
from trainyard.protocol.rest.access import Permission, TokenRequest
from trainyard.protocol.rest.projects import ProjectRole
from trainyard.protocol.user_accounts.views import ClusterRole

UNKNOWN = {"?": 1}
"""A body that no operation takes, so that no operation does anything."""
SINGLE = {"/api/v1/stream": {"job": "no id"}}
"""A query that the stream refuses after authorization, because a stream does not end."""

PERSONS = ("admin", "api", "exact", "rest")
ROLES = {"user": "user", "operator": "operator", "root": "admin", "session": "admin"}
"""Tokens of users with these roles; `session` is a browser session after a login by password."""
MACHINES = ("join", "node", "source")
ENDED = ("none", "expired", "revoked", "disabled")
KINDS = (*ENDED, *PERSONS, *ROLES, *MACHINES, "attempt")
"""`exact`: an API token with only the needed permission; `rest`: with all others."""

OF_MACHINES = {Caller.NODE, Caller.JOINER, Caller.SOURCE, Caller.SOURCE_JOINER}

Header = Mapping[str, str]


@dataclass(frozen=True)
class Operation:
    """An operation of the OpenAPI document."""

    method: str
    path: str
    access: str
    has_body: bool


def operations() -> list[Operation]:
    return [
        Operation(method, path, found["x-permission"], "requestBody" in found)
        for path, methods in DOCUMENT["paths"].items()
        for method, found in methods.items()
    ]


def predicted(kind: str, access: str) -> str:
    """Return `401`, `403` or `past`: the rules of docs/access.md."""
    if access == Caller.PUBLIC:
        return "past"
    if kind in ENDED:
        return "401"
    if access == Caller.ATTEMPT or kind == "attempt":
        return "past" if (access, kind) == (Caller.ATTEMPT, "attempt") else "401"
    if access == Caller.PILOT:
        return "401"
    if kind == "session" and access in OF_MACHINES:
        return "401"  # they read no cookie
    return "past" if is_allowed(kind, access) else "403"


def is_allowed(kind: str, access: str) -> bool:
    machines = {
        Caller.NODE: {"node"},
        Caller.JOINER: {"join", "node"},
        Caller.SOURCE: {"source"},
        Caller.SOURCE_JOINER: {"join", "source"},
    }
    if access in machines:
        return kind in machines[Caller(access)]
    if access == Caller.PERSON:
        return kind in {*PERSONS, *ROLES}
    if access == Caller.USER:  # of the built-in user, only with `tokens:admin`
        return kind in {"admin", *ROLES}
    if kind in ROLES:
        most = ALL if kind == "session" else WITHOUT_SCOPES
        return Permission(access) in most & of_role(ROLES[kind])
    has = {
        "admin": True,
        "api": Permission(access) in WITHOUT_SCOPES,
        "exact": True,
        "rest": False,
    }
    return has.get(kind, False)


def of_role(role: str) -> frozenset[Permission]:
    """Return what docs/users.md gives a user with this role."""
    member, cluster = held_by_role(ProjectRole.MEMBER), held_by_role(ClusterRole(role))
    return ALL if role == "admin" else member | cluster


@dataclass(eq=False)
class Tokens:
    """Headers with tokens of every kind, and the attempt whose token is among them."""

    context: Context
    clock: FakeClock
    admin_token: str
    attempt_id: str
    attempt_token: str

    def header(self, kind: str, access: str) -> Header:
        """Return the header with a token of this kind, for an operation."""
        if kind == "none":
            return {}
        if kind == "session":
            return self._session()
        if kind in PERSONS and access in list(Permission):
            return self._of_person(kind, Permission(access))
        return self._fixed(kind)

    def _of_person(self, kind: str, needed: Permission) -> Header:
        if kind == "exact":
            return self._scoped(f"only-{needed}", (needed,))
        if kind == "rest":
            return self._scoped(f"no-{needed}", tuple(sorted(ALL - {needed})))
        return self._fixed(kind)

    @cache  # noqa: B019 - one object per test
    def _fixed(self, kind: str) -> Header:
        match kind:
            case "admin":
                return bearer(self.admin_token)
            case "api" | "exact" | "rest":
                return self._made(name=f"as-{kind}")
            case "attempt":
                return bearer(self.attempt_token)
            case "disabled":
                header = self._of_user("gone", ClusterRole.ADMIN)
                gone = update(users).where(users.c.name == "gone").values(state="disabled")
                with self.context.database.write() as connection:
                    connection.execute(gone)
                return header
            case "user" | "operator" | "root":
                return self._of_user(kind, ClusterRole(ROLES[kind]))
            case "expired":
                header = self._made(name="expired", expires_in_seconds=60)
                self.clock.advance(61)
                return header
            case "revoked":
                header = self._made(name="revoked")
                revoked = update(tokens).where(tokens.c.name == "revoked")
                with self.context.database.write() as connection:
                    connection.execute(revoked.values(revoked_at=self.context.now()))
                return header
            case _:
                node = "node-1" if kind == "node" else None
                return of_kind(self.context, TokenKind(kind), node=node)

    def _of_user(self, name: str, role: ClusterRole) -> Header:
        actor = self._actor(name, role)
        return bearer(create_token(self.context, TokenRequest(name=name), actor=actor)[1])

    @cache  # noqa: B019 - one object per test
    def _actor(self, name: str, role: ClusterRole) -> Actor:
        """Store a user, and return it as an actor."""
        row = {"id": self.context.new_id(), "name": name, "role": role, "state": "active"}
        with self.context.database.write() as connection:
            connection.execute(insert(users).values(**row, created_at=self.context.now()))
        return Actor(
            name, user_id=row["id"], user_name=name, role=role, permissions=ALL, token_allows=ALL
        )

    def _session(self) -> Header:
        """Open a session for one request, because one of the operations ends it."""
        user_id = self._actor("by-password", ClusterRole.ADMIN).owner_id
        with self.context.database.write() as connection:
            opened = store_session(self.context, connection, user_id=user_id)
        return {"cookie": f"{SESSION_COOKIE}={opened.cookie}", **ORIGIN}

    @cache  # noqa: B019 - one object per test
    def _scoped(self, name: str, scopes: tuple[Permission, ...]) -> Header:
        return self._made(name=name.replace(":", "-"), scopes=scopes)

    def _made(self, **fields: Any) -> Header:
        return bearer(create_token(self.context, TokenRequest(**fields))[1])


def bearer(token: str) -> Header:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def given(context: Context, clock: FakeClock, harness: Harness, admin_token: str) -> Tokens:
    harness.add_node()
    _, (supervisor,) = harness.running()
    return Tokens(
        context, clock, admin_token, supervisor.attempt_id, supervisor.reply.attempt_token
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_operation_lets_through_whom_its_declaration_names(
    anonymous: TestClient, given: Tokens, kind: str
) -> None:
    wrong = []
    for each in operations():
        path = each.path.replace("{attempt_id}", given.attempt_id)
        path = re.sub(r"\{\w+\}", "0" * 26, path)
        response = anonymous.request(
            each.method,
            path,
            headers=given.header(kind, each.access),
            params=SINGLE.get(each.path),
            json=UNKNOWN if each.has_body else None,
        )
        found = {401: "401", 403: "403"}.get(response.status_code, "past")
        wanted = predicted(kind, each.access)
        if found != wanted or response.status_code >= 500:
            wrong.append((each.method, each.path, each.access, response.status_code, wanted))
    assert wrong == []


def test_the_matrix_has_every_permission_and_every_caller() -> None:
    found = {each.access for each in operations()}
    within = {Permission.TOKENS_ADMIN}  # checked within the operations on tokens
    assert found == {*Permission, *Caller} - within
    assert len(operations()) > 100


def test_a_refusal_names_the_missing_permission_and_what_the_token_has(
    anonymous: TestClient, context: Context
) -> None:
    request = TokenRequest(name="ci", scopes=(Permission.JOBS_WRITE, Permission.JOBS_READ))
    header = bearer(create_token(context, request)[1])
    refused = anonymous.get("/api/v1/nodes", headers=header)
    assert refused.status_code == 403
    assert refused.json()["detail"] == (
        "this needs nodes:read; the token 'ci' has jobs:read, jobs:write"
    )


# ---- declarations --------------------------------------------------------------------------------


@pytest.fixture
def routers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[APIRouter]]:
    """The routers of new applications; a test may add one."""
    changed = [*factory.ROUTERS]
    monkeypatch.setattr(factory, "ROUTERS", changed)
    factory._routes.cache_clear()
    yield changed
    monkeypatch.undo()
    factory._routes.cache_clear()


def test_a_server_with_a_route_without_a_declaration_does_not_start(
    context: Context, routers: list[APIRouter]
) -> None:
    router = APIRouter()

    @router.post("/forgotten/{name}")
    def forgotten(name: str) -> str:
        return name

    routers.append(router)
    message = r"POST /api/v1/forgotten/\{name\} declares nothing about its callers"
    with pytest.raises(UndeclaredAccessError, match=message):
        factory.create_app(context)


def test_a_route_declares_one_access() -> None:
    router = APIRouter()

    @router.get("/twice", dependencies=[may(Permission.JOBS_READ), person])
    def twice() -> str:
        return ""

    with pytest.raises(UndeclaredAccessError, match="GET /twice declares jobs:read and person"):
        accesses_of(router.routes)


def test_a_route_that_is_no_endpoint_is_refused() -> None:
    app = FastAPI()
    with pytest.raises(UndeclaredAccessError, match=r"/openapi\.json declares nothing"):
        accesses_of(app.routes)


# ---- the table -----------------------------------------------------------------------------------


def test_the_table_has_a_sentence_for_each_permission() -> None:
    assert set(MEANINGS) == ALL == set(Permission)
    assert list(MEANINGS) == list(Permission), "in the same order"
    sentences = [each.sentence for each in MEANINGS.values()]
    assert len({*sentences}) == len(sentences)
    assert all(each.endswith(".") for each in sentences)


@pytest.mark.parametrize("roles", [ProjectRole, ClusterRole])
def test_a_role_has_the_permissions_of_the_roles_before_it(
    roles: type[ProjectRole] | type[ClusterRole],
) -> None:
    held = [held_by_role(role) for role in roles]
    assert all(less < more for less, more in pairwise(held))
    about = "project" if roles is ProjectRole else "cluster"
    assert held[-1] == {each for each in Permission if MEANINGS[each].about == about}


def test_a_token_without_scopes_has_what_the_admin_token_alone_had_before() -> None:
    former = {Permission.TOKENS_ADMIN, Permission.SOURCES_WRITE}
    assert former | {Permission.USERS_ADMIN, Permission.AUDIT_READ} == ALL - WITHOUT_SCOPES
