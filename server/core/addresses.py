"""Addresses of clients: the key of each for limits, and the trusted proxies."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

IPV6_PREFIX = 64
"""A customer of a provider gets at least a /64, so its addresses count as one."""


def counted_as(host: str) -> str:
    """Return the key under which a client is counted: its IPv4 address or its IPv6 /64."""
    address = address_of(host)
    if address is None:  # a unix socket, or a text from a proxy that is not an address
        return host[:100]
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, IPV6_PREFIX), strict=False))
    return str(address)


class Networks:
    """A set of addresses and networks, such as those of trusted proxies."""

    def __init__(self, parts: Iterable[str]) -> None:
        """Parse the parts.

        Raises:
            ValueError: a part is neither an address nor a network.
        """
        self._networks = [ip_network(part) for part in parts]

    def __contains__(self, host: str) -> bool:
        """Return whether a host lies in one of the networks."""
        address = address_of(host)
        return address is not None and any(address in network for network in self._networks)


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address of a host, or None for a name.

    The zone is dropped; an IPv4-mapped IPv6 address is returned as IPv4.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
