"""Concurrent changes of users and their tokens: nothing survives its end, and nothing deadlocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
from fastapi import FastAPI
from sqlalchemy import select, update

from server.api.accounts.service import change_user, invite
from server.api.auth.browser_sessions import (
    close_session,
    end_own_session,
    open_session,
)
from server.api.auth.endings import end_access
from server.api.auth.principals import hold_token, lock_users, note_uses
from server.api.auth.service import create_token, revoke_token
from server.core.context import Context
from server.core.database.tables import tokens
from server.core.errors import ForbiddenError, RefusalError, UnauthenticatedError
from server.core.people.user_tables import sessions, users
from server.core.subject import SERVER, Actor
from tests.actors import authenticate_token
from tests.server.api.accounts.people import Member, joined
from tests.server.api.in_process import TestClient
from trainyard.protocol.rest.access import Permission, TokenRequest
from trainyard.protocol.user_accounts.views import ClusterRole, UserChange, UserState

PATIENCE = 60
DISABLE = UserChange(state=UserState.DISABLED)


@pytest.fixture
def ada(app: FastAPI, admin: TestClient) -> Member:
    return joined(app, admin, "ada")


def actor_of(context: Context, member: Member, name: str = "laptop") -> Actor:
    """Return the actor of a new token of a user."""
    header = member.token(name)
    return authenticate_token(context, header["authorization"].removeprefix("Bearer ")).actor


def valid_tokens(context: Context, user_id: str) -> int:
    with context.database.read() as connection:
        query = select(tokens.c.id).where(
            tokens.c.user_id == user_id, tokens.c.revoked_at.is_(None)
        )
        return len(connection.scalars(query).all())


def test_a_token_made_while_its_user_is_disabled_does_not_survive(
    context: Context, ada: Member
) -> None:
    actor = actor_of(context, ada)
    thread = threading.Thread(
        target=change_user, args=(context, ada.id, DISABLE), kwargs={"actor": SERVER}
    )
    with context.database.write() as connection:
        hold_token(connection, actor, context.now())  # as `create_token` begins
        thread.start()
        thread.join(0.5)
        assert thread.is_alive(), "it waits for the token in progress"
        row = {"id": context.new_id(), "name": "late", "kind": "api", "hash": "late"}
        values = row | {"user_id": ada.id, "created_at": context.now()}
        connection.execute(tokens.insert().values(values))
    thread.join(PATIENCE)
    assert valid_tokens(context, ada.id) == 0


@pytest.mark.parametrize("what", ["token", "login"])
def test_what_waits_for_a_disabled_user_is_refused(
    context: Context, ada: Member, what: str
) -> None:
    header = ada.token()
    secret = header["authorization"].removeprefix("Bearer ")
    actor = authenticate_token(context, secret).actor
    found: list[object] = []

    def make() -> None:
        try:
            if what == "token":
                found.append(create_token(context, TokenRequest(name="late"), actor=actor))
            else:
                found.append(open_session(context, token=secret, code=None))
        except RefusalError as error:
            found.append(error)

    thread = threading.Thread(target=make)
    with context.database.write() as connection:
        lock_users(connection, [ada.id])
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        end_access(connection, [ada.id], context.now())
        disabled = update(users).where(users.c.id == ada.id).values(state=UserState.DISABLED)
        connection.execute(disabled)
    thread.join(PATIENCE)
    (error,) = found
    assert isinstance(error, UnauthenticatedError)
    assert valid_tokens(context, ada.id) == 0
    with context.database.read() as connection:
        assert connection.execute(select(sessions).where(sessions.c.user_id == ada.id)).all() == []


def test_a_maker_that_loses_its_role_makes_nothing(
    app: FastAPI, admin: TestClient, context: Context, ada: Member
) -> None:
    root = joined(app, admin, "root", role="admin")
    header = root.token("maker", scopes=[*Permission])
    actor = authenticate_token(context, header["authorization"].removeprefix("Bearer ")).actor
    change_user(context, root.id, UserChange(role=ClusterRole.USER), actor=SERVER)
    with pytest.raises(ForbiddenError, match="permissions have changed"):
        invite(context, ada.id, actor=actor)


def test_admins_who_change_each_other_do_not_deadlock(
    app: FastAPI, admin: TestClient, context: Context
) -> None:
    some = [joined(app, admin, name, role="admin") for name in ("a1", "b2", "c3")]
    actors = []
    for each in some:
        header = each.token("all", scopes=[*Permission])
        secret = header["authorization"].removeprefix("Bearer ")
        actors.append(authenticate_token(context, secret))
    ids = [each.token_id or "" for each in actors]
    orders: list[Callable[[], object]] = []
    for place, principal in enumerate(actors):
        other, actor = some[(place + 1) % 3], principal.actor
        change = UserChange(email=f"{place}@example.org")
        orders += [
            partial(change_user, context, other.id, change, actor=actor),
            partial(invite, context, other.id, actor=actor),
            partial(note_uses, context, [ids[place]]),
            partial(note_uses, context, ids),
        ]
    begin = threading.Barrier(len(orders))

    def repeat(order: Callable[[], object]) -> None:
        begin.wait(PATIENCE)
        for _ in range(8):
            order()

    with ThreadPoolExecutor(len(orders)) as pool:
        for future in [pool.submit(repeat, each) for each in orders]:
            future.result(PATIENCE)


def test_ends_of_one_user_do_not_deadlock(
    app: FastAPI, admin: TestClient, context: Context
) -> None:
    for round_ in range(5):
        eve = joined(app, admin, f"eve-{round_}")
        made = [eve.token(f"t{n}")["authorization"].removeprefix("Bearer ") for n in range(4)]
        principals = [authenticate_token(context, each) for each in made]
        ids = [each.token_id or "" for each in principals]
        orders: list[Callable[[], object]] = [
            partial(change_user, context, eve.id, DISABLE, actor=SERVER),
            partial(note_uses, context, ids),
            *(partial(revoke_token, context, each) for each in ids[:2]),
            *(partial(open_session, context, token=each, code=None) for each in made),
            partial(create_token, context, TokenRequest(name="late"), actor=principals[3].actor),
        ]
        begin = threading.Barrier(len(orders))

        def run(order: Callable[[], object], begin: threading.Barrier = begin) -> None:
            begin.wait(PATIENCE)
            with suppress(RefusalError):  # its token has ended first
                order()

        with ThreadPoolExecutor(len(orders)) as pool:
            for future in [pool.submit(run, each) for each in orders]:
                future.result(PATIENCE)
        assert valid_tokens(context, eve.id) == 0
        with context.database.read() as connection:
            left = select(sessions).where(sessions.c.user_id == eve.id)
            assert connection.execute(left).all() == []


@pytest.mark.parametrize("what", ["logout", "end"])
def test_the_end_of_a_session_locks_its_user_first(
    context: Context, ada: Member, what: str
) -> None:
    """The end of all access locks the user, the commands, and then the sessions."""
    secret = ada.token()["authorization"].removeprefix("Bearer ")
    opened = open_session(context, token=secret, code=None)
    session_id = opened.principal.session_id
    assert session_id is not None
    end = partial(close_session, context, opened.cookie)
    if what == "end":
        end = partial(end_own_session, context, opened.principal, session_id)
    thread = threading.Thread(target=end)
    with context.database.write() as connection:
        lock_users(connection, [ada.id])
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        query = select(sessions.c.id).where(sessions.c.id == session_id)
        connection.execute(query.with_for_update(nowait=True)).one()  # nothing else holds it
    thread.join(PATIENCE)
    with context.database.read() as connection:
        assert connection.execute(query).one_or_none() is None
