"""A server with single sign-on at a real issuer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from server.core.context import Context
from server.core.database.engine import Database
from server.core.settings import Settings
from tests.server.api.sso.issuers import (
    BASE,
    SCOPES,
    SECRET,
    Person,
    ShiftedClock,
    TestIssuer,
    running_issuer,
)


@pytest.fixture(scope="session")
def real_issuer() -> Iterator[TestIssuer]:
    """A process of `oidc-provider`, which all tests share."""
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def clock() -> ShiftedClock:
    """The clock of the machine, which a test shifts."""
    return ShiftedClock()


@pytest.fixture
def oidc() -> dict[str, Any]:
    """Further settings of the server."""
    return {"oidc_sign_up": "anyone"}


@pytest.fixture
def issuer_url(real_issuer: TestIssuer) -> str:
    """URL of the issuer."""
    return real_issuer.url


@pytest.fixture
def context(
    database: Database,
    database_url: str,
    clock: ShiftedClock,
    tmp_path: Path,
    issuer_url: str,
    oidc: dict[str, Any],
) -> Context:
    """The surroundings of a server process with single sign-on."""
    secret = tmp_path / "client.secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    settings = Settings(
        database_url=database_url,
        state_dir=tmp_path,
        public_url=BASE,
        oidc_issuer=issuer_url,
        oidc_client_id="trainyard",
        oidc_client_secret_file=secret,
        **{"oidc_scopes": SCOPES, **oidc},
    )
    context = Context(settings=settings, database=database, clock=clock)
    context.secrets.create()
    return context


@pytest.fixture
def person(app: FastAPI, real_issuer: TestIssuer) -> Iterator[Callable[..., Person]]:
    """Makes persons of the issuer with browsers."""
    numbers, made = iter(range(1, 100)), list[Person]()

    def make(name: str, **claims: Any) -> Person:
        real_issuer.put(name, **{"preferred_username": name, **claims})
        made.append(Person(app, name, f"192.0.2.{next(numbers)}"))
        return made[-1]

    yield make
    for each in made:
        each.at_issuer.close()
