"""Addresses of clients: the key that identifies a client for limits, and the trusted proxies."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

IPV6_PREFIX = 64
"""Length of an IPv6 prefix that counts as one client; a provider gives each customer a /64 or more.
"""
SITE_PREFIX = 48
"""Length of an IPv6 prefix that counts as one site, where a limit on all clients together would let
a customer with many /64 keep out the others."""


def counted_as(host: str, prefix: int = IPV6_PREFIX) -> str:
    """Return the key for counting a client: its IPv4 address, or the prefix of its IPv6 address.

    The key of a text that is not an address is the text, cut to 100 characters.
    """
    address = address_of(host)
    if address is None:  # a unix socket, or a text from a proxy that is not an address
        return host[:100]
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, prefix), strict=False))
    return str(address)


class Networks:
    """A set of addresses and networks, such as the trusted proxies."""

    def __init__(self, parts: Iterable[str]) -> None:
        """Parse addresses and networks; raise `ValueError` for a text that is neither."""
        self._networks = [ip_network(part) for part in parts]

    def __contains__(self, host: str) -> bool:
        """Return whether a host lies in one of the networks."""
        address = address_of(host)
        return address is not None and any(address in network for network in self._networks)


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address of a host, or None for a host name.

    The zone of an IPv6 address is dropped. An IPv4-mapped IPv6 address is returned as IPv4.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
