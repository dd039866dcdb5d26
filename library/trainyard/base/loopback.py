"""Detection of loopback hosts, of URLs that need certificates, and of secure URLs."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address; names are not resolved."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def uses_tls(url: str) -> bool:
    """Return whether a client for a URL needs certificates (`verify` of httpx's clients).

    A client that follows redirects always needs certificates. Other clients can skip them for plain
    HTTP, which saves 20 to 60 ms at each start of a process.
    """
    return not url.lower().startswith("http://")


def is_secure_url(url: str) -> bool:
    """Return whether a URL has https, or http and a loopback host.

    A URL with a user, a query or a fragment is not secure.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or "@" in parts.netloc or parts.query or parts.fragment or not url.isprintable():
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
