"""Which hosts are this machine itself."""

from __future__ import annotations

import pytest

from trainyard.base.loopback import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.2", "::1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example.com"])
def test_other_hosts(host: str) -> None:
    assert not is_loopback(host)
