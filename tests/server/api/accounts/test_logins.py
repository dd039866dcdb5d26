"""Logins by password: guesses are counted, times are equal, passwords appear nowhere."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from argon2 import PasswordHasher
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import select, update

from server.api.accounts import passwords
from server.api.accounts.passwords import (
    AT_ONCE,
    MAX_OF_ACCOUNT,
    MAX_OF_ADDRESS,
    MAX_WAITING,
    UNKNOWN,
    is_outdated,
)
from server.api.auth.browser_sessions import LONGEST_BROWSER
from server.core.context import Context
from server.core.errors import UnavailableError
from server.core.people.user_tables import users
from tests.server.api.accounts.people import (
    API,
    ORIGIN,
    PASSWORD,
    SESSION,
    WRONG,
    Member,
    at,
    joined,
    log_in,
)
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock
from trainyard.protocol.user_accounts.views import PasswordChange, PasswordLogin


@pytest.fixture
def ada(app: FastAPI, admin: TestClient) -> Member:
    return joined(app, admin, "ada")


def test_a_password_is_changed_and_other_sessions_end(app: FastAPI, ada: Member) -> None:
    other = at(app, "192.0.2.1")
    assert log_in(other, PASSWORD, " Ada ") == 201
    path, new = f"{API}/auth/password", "a much better one"
    wrong = {"current": WRONG, "new": new}
    assert ada.browser.put(path, json=wrong, headers=ORIGIN).status_code == 401
    for given, detail in (("short", "12"), ("x" * 1001, "1000"), ("ADA" * 1, "12")):
        body = {"current": PASSWORD, "new": given}
        refused = ada.browser.put(path, json=body, headers=ORIGIN)
        assert refused.status_code == 422
        assert detail in refused.text
    body = {"current": PASSWORD, "new": new}
    assert ada.browser.put(path, json=body, headers=ORIGIN).status_code == 204
    assert ada.browser.get(f"{API}/jobs").status_code == 200
    assert other.get(f"{API}/jobs").status_code == 401
    assert (log_in(other, PASSWORD), log_in(other, new)) == (401, 201)


def test_a_password_is_not_the_name(app: FastAPI, admin: TestClient) -> None:
    name = "a-rather-long-name"
    member = joined(app, admin, name)
    body = {"current": PASSWORD, "new": name.upper()}
    refused = member.browser.put(f"{API}/auth/password", json=body, headers=ORIGIN)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/new"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"name": "ada"}, "/password"),
        ({"password": PASSWORD}, "/name"),
        ({"name": "ada", "password": PASSWORD, "token": "ty_api_x"}, "/name"),
        ({"token": "ty_api_x", "code": "ty_login_x"}, "/code"),
        ({"name": "ada", "password": PASSWORD, "role": "admin"}, "/role"),
        ({"name": "ada", "password": "x" * 1001}, "/password"),
        ({"name": "ada", "password": 12}, "/password"),
    ],
)
def test_a_login_that_is_not_one_way_is_refused(
    anonymous: TestClient, body: dict[str, object], pointer: str
) -> None:
    refused = anonymous.post(SESSION, json=body)
    assert refused.status_code == 422, refused.text
    assert [each["pointer"] for each in refused.json()["errors"]] == [pointer]
    assert PASSWORD not in refused.text
    assert "xxx" not in refused.text
    assert "12" not in refused.json()["detail"]


def test_the_longest_password_fits(app: FastAPI, admin: TestClient, ada: Member) -> None:
    longest = "\U0001f600" * 1000
    body = {"current": PASSWORD, "new": longest}
    changed = ada.browser.put(f"{API}/auth/password", json=body, headers=ORIGIN)
    assert changed.status_code == 204, changed.text
    assert log_in(at(app, "192.0.2.9"), longest) == 201
    del admin


# ---- guesses -------------------------------------------------------------------------------------


def test_guesses_of_an_account_are_counted_over_all_addresses(
    app: FastAPI, admin: TestClient, ada: Member, clock: FakeClock
) -> None:
    joined(app, admin, "bob")
    for place in range(10):
        assert log_in(at(app, f"192.0.2.{place}"), WRONG) == 401
    stranger = at(app, "198.51.100.1")
    refused = stranger.post(SESSION, json={"name": "ada", "password": PASSWORD})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) == 900
    assert "logins as 'ada' failed" in refused.json()["detail"]
    assert log_in(stranger, PASSWORD, "bob") == 201, "other accounts are not affected"
    assert log_in(ada.browser, PASSWORD) == 201, "the owner has a session from this address"
    token = {"name": "ada", "password": PASSWORD, "token_name": "x"}
    assert stranger.post(f"{API}/auth/token", json=token).status_code == 429
    clock.advance(899)
    assert log_in(stranger, PASSWORD) == 429
    clock.advance(1)
    assert log_in(stranger, PASSWORD) == 201


def test_guesses_of_one_address_are_counted_over_all_ways(
    app: FastAPI, anonymous: TestClient, ada: Member, clock: FakeClock
) -> None:
    wrong = {"code": "ty_invitation_x"}
    for _ in range(3):
        assert log_in(anonymous, WRONG, "nobody-here") == 401
        assert anonymous.post(f"{API}/auth/invitation/check", json=wrong).status_code == 401
        accepted = anonymous.post(f"{API}/auth/invitation", json=wrong | {"password": WRONG})
        assert accepted.status_code == 401
    assert anonymous.post(SESSION, json={"token": "ty_api_x"}).status_code == 401
    assert log_in(anonymous, PASSWORD) == 429
    assert anonymous.post(f"{API}/auth/invitation/check", json=wrong).status_code == 429
    change = {"current": PASSWORD, "new": "another password"}
    assert ada.browser.put(f"{API}/auth/password", json=change, headers=ORIGIN).status_code == 429
    clock.advance(60)
    assert log_in(anonymous, PASSWORD) == 201
    for _ in range(20):
        assert log_in(anonymous, PASSWORD) == 201, "a right password is no guess"
    del app


def test_concurrent_guesses_do_not_pass_the_limit(
    app: FastAPI, ada: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    del ada
    monkeypatch.setattr(passwords, "MAX_OF_ACCOUNT", 20)  # else most of them get 503
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda n: log_in(at(app, f"192.0.2.{n}"), WRONG), range(20)))
    assert sorted(found) == [401] * 10 + [429] * 10


def test_a_login_that_finds_no_thread_gets_503_and_is_no_guess(
    anonymous: TestClient, ada: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    del ada
    places = passwords.HashPlaces(1)
    monkeypatch.setattr(passwords, "_PLACES", places)
    places.take(())
    for _ in range(11):
        refused = anonymous.post(SESSION, json={"name": "ada", "password": PASSWORD})
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
    places.free(())
    assert log_in(anonymous, PASSWORD) == 201
    places.take(())  # the place is free again


def test_no_account_and_no_address_holds_all_places() -> None:
    places = passwords.HashPlaces(20)
    held = [passwords.holders_of("ada", "192.0.2.1")] * MAX_OF_ACCOUNT
    for each in held:
        places.take(each)
    with pytest.raises(UnavailableError, match="2 logins of one account"):
        places.take(passwords.holders_of(" ADA ", "192.0.2.2"))
    for n in range(MAX_OF_ADDRESS - MAX_OF_ACCOUNT):
        held.append(passwords.holders_of(f"user-{n}", "192.0.2.1"))
        places.take(held[-1])
    with pytest.raises(UnavailableError, match="12 logins of one address"):
        places.take(passwords.holders_of("bob", "192.0.2.1"))
    places.take(passwords.holders_of("bob", "192.0.2.2"))
    places.free(held[0])
    places.take(passwords.holders_of("ada", "192.0.2.1"))


def test_a_cancelled_login_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    places, threads = passwords.HashPlaces(1), ThreadPoolExecutor(1)
    monkeypatch.setattr(passwords, "_PLACES", places)
    monkeypatch.setattr(passwords, "_THREADS", threads)
    held = threading.Event()
    threads.submit(held.wait)

    async def cancel() -> None:
        task = asyncio.create_task(passwords.new_hash(SecretStr(PASSWORD), holders=()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    places.take(())
    held.set()
    threads.shutdown()


def test_few_threads_compute_hashes() -> None:
    assert passwords._THREADS._max_workers == AT_ONCE == 4
    assert MAX_WAITING <= 40


# ---- hashes --------------------------------------------------------------------------------------


def test_the_hash_for_unknown_names_takes_as_long_as_a_real_one() -> None:
    assert not is_outdated(UNKNOWN)
    assert UNKNOWN.split("$")[3] == PasswordHasher().hash("x").split("$")[3]


def test_an_unknown_name_is_checked_as_a_known_one(
    anonymous: TestClient, ada: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    verify = passwords._verify

    def noted(password: SecretStr, stored: str) -> bool:
        seen.append(stored)
        return verify(password, stored)

    monkeypatch.setattr(passwords, "_verify", noted)
    replies = [
        anonymous.post(SESSION, json={"name": name, "password": WRONG})
        for name in ("ada", "unknown", "admin", "x" * 100)
    ]
    assert {(each.status_code, each.json()["detail"]) for each in replies} == {
        (401, "name or password is wrong, or the user is disabled")
    }
    assert seen[1:] == [UNKNOWN] * 3
    assert seen[0] != UNKNOWN
    del ada


def test_a_hash_with_former_parameters_is_replaced(
    anonymous: TestClient, ada: Member, context: Context
) -> None:
    weak = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
    its = users.c.id == ada.id
    with context.database.write() as connection:
        connection.execute(update(users).where(its).values(password=weak))
    assert log_in(anonymous, PASSWORD) == 201
    with context.database.read() as connection:
        stored = connection.scalar(select(users.c.password).where(its))
    assert stored is not None
    assert not is_outdated(stored)
    assert log_in(anonymous, PASSWORD) == 201


def test_a_password_appears_in_no_log_and_no_text(
    anonymous: TestClient, ada: Member, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log_in(anonymous, PASSWORD)
    log_in(anonymous, WRONG)
    misspelled = {"name": "ada", "passwort": WRONG, "password": WRONG}
    assert WRONG not in anonymous.post(SESSION, json=misspelled).text
    assert PASSWORD not in caplog.text
    assert WRONG not in caplog.text
    secret = SecretStr(PASSWORD)
    change = PasswordChange(current=secret, new=secret)
    login = PasswordLogin(name="ada", password=secret, token_name="x")
    for model in (change, login):
        assert PASSWORD not in repr(model) + str(model) + model.model_dump_json()
    del ada


def test_a_session_shows_where_it_was_opened(app: FastAPI, ada: Member, clock: FakeClock) -> None:
    browser = at(app, "192.0.2.7")
    agent = {"user-agent": "Mozilla/5.0 \x07" + "x" * 500}
    login = {"name": "ada", "password": PASSWORD}
    assert browser.post(SESSION, json=login, headers=agent).status_code == 201
    clock.advance(90)
    browser.get(f"{API}/jobs")
    clock.advance(30)
    browser.get(f"{API}/jobs")
    (found,) = [
        each for each in browser.get(f"{API}/auth/sessions").json()["items"] if each["is_current"]
    ]
    assert found["address"] == "192.0.2.7"
    assert found["browser"].startswith("Mozilla/5.0 ?x")
    assert len(found["browser"]) == LONGEST_BROWSER
    begin, used = found["created_at"], found["last_used_at"]
    assert begin < used, "to the minute"
    del ada
