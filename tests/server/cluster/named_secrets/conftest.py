"""Users of `ours` with secrets."""

from __future__ import annotations

import pytest

from server.cluster.named_secrets.service import (
    put_own_secret,
    put_project_secret,
)
from server.core.context import Context
from server.core.subject import Actor
from tests.server.cluster.named_secrets.jobs_with_secrets import user
from tests.server.members import OURS, add_projects


@pytest.fixture
def eve(context: Context) -> Actor:
    """A maintainer of `ours`, who has stored its secret."""
    add_projects(context)
    eve = user(context, "eve", "maintainer")
    put_project_secret(context, OURS, "hf", value="first value", actor=eve)
    return eve


@pytest.fixture
def ada(context: Context, eve: Actor) -> Actor:
    """A member of `ours` with an own secret."""
    ada = user(context, "ada", "member")
    put_own_secret(context, "own", value="value of ada", actor=ada)
    return ada


@pytest.fixture
def bob(context: Context, eve: Actor) -> Actor:
    return user(context, "bob", "member")
