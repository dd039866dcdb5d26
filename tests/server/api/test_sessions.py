"""Browser sessions of a token: a bounded number."""

from __future__ import annotations

import pytest

from server.api.auth.browser_sessions import MAX_SESSIONS, authenticate_session, open_session
from server.core.context import Context
from server.core.errors import UnauthenticatedError
from tests.server.api.in_process import TestClient
from tests.server.clock import FakeClock


def test_a_token_has_a_number_of_sessions_and_the_oldest_ends(
    context: Context, client: TestClient, api_token: str, clock: FakeClock
) -> None:
    first = open_session(context, token=api_token, code=None)
    for _ in range(MAX_SESSIONS):
        clock.advance(1)
        last = open_session(context, token=api_token, code=None)
    with pytest.raises(UnauthenticatedError):
        authenticate_session(context, first.cookie)
    authenticate_session(context, last.cookie)
