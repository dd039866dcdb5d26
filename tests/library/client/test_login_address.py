"""An address without a scheme: https, except for a loopback address, which has no TLS."""

from __future__ import annotations

import pytest

from trainyard.cli.commands.local import _guessed_scheme


@pytest.mark.parametrize(
    ("address", "scheme"),
    [
        ("127.0.0.1:8470", "http"),
        ("localhost:8470", "http"),
        ("[::1]:8470", "http"),
        ("trainyard.example.com", "https"),
        ("10.0.0.1:8470", "https"),
        ("localhost.example.com", "https"),
    ],
)
def test_only_a_loopback_address_is_taken_for_http(address: str, scheme: str) -> None:
    assert _guessed_scheme(address) == scheme
