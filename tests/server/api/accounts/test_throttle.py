"""Failed logins: counted before the check, per address and per account."""

from __future__ import annotations

import pytest

from server.api.accounts.throttle import forget_failed_logins, guess, of_address
from server.core.context import Context
from server.core.errors import TooManyError, UnauthenticatedError
from tests.server.clock import FakeClock


def test_windows_of_failed_logins_are_forgotten(context: Context, clock: FakeClock) -> None:
    for host in ("192.0.2.1", "192.0.2.2"):
        fail(context, host)
    clock.advance(59)
    assert forget_failed_logins(context) == 0
    fail(context, "192.0.2.3")
    clock.advance(1)
    assert forget_failed_logins(context) == 2
    clock.advance(-3600)
    assert forget_failed_logins(context) == 1, "written before the clock was set back"


def test_addresses_of_one_ipv6_network_are_counted_together(context: Context) -> None:
    for _ in range(9):
        fail(context, "2001:db8::1")
    with guess(context, of_address("2001:db8::2")):
        pass
    fail(context, "2001:db8::1")
    with pytest.raises(TooManyError):
        fail(context, "2001:db8::2")
    fail(context, "2001:db8:0:1::2")


def fail(context: Context, host: str) -> None:
    """Count a failed login of an address."""
    with (
        pytest.raises(UnauthenticatedError),
        guess(context, of_address(host)),
    ):
        raise UnauthenticatedError("wrong")
