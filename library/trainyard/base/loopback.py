"""Which hosts are this machine itself, and which URLs need certificates."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address; other names are not resolved."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def uses_tls(url: str) -> bool:
    """Return whether a client of a server reads certificates: `verify` of httpx's clients.

    To read those of the machine takes 20 to 60 ms of a processor, at each start of a process, and
    no request over plain HTTP needs them. A client that follows redirects needs them always.
    """
    return not url.lower().startswith("http://")
