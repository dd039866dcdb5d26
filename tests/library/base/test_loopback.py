"""Which hosts are this machine, and which URLs need certificates."""

from __future__ import annotations

import pytest

from trainyard.base.loopback import is_loopback, uses_tls


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.2", "::1"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example.com"])
def test_other_hosts(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8470", False),
        ("HTTP://gpu-01", False),
        ("https://train.example.com", True),
        ("httpsx://gpu-01", True),
        ("", True),
    ],
)
def test_only_plain_urls_need_no_certificates(url: str, expected: bool) -> None:
    assert uses_tls(url) == expected
