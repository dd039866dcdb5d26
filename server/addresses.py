"""Addresses of clients: the key of each for limits, and the trusted proxies."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network

IPV6_PREFIX = 64
"""A customer of a provider gets at least a /64, so its addresses count as one."""


def counted_as(host: str) -> str:
    """Return the key under which a client is counted: its IPv4 address or its IPv6 /64."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:  # a unix socket, or what a proxy wrote instead of an address
        return host[:100]
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, IPV6_PREFIX), strict=False))


class Networks:
    """A set of addresses and networks, such as those of trusted proxies."""

    def __init__(self, parts: Iterable[str]) -> None:
        """Raise ValueError where a part is neither an address nor a network."""
        self._networks = [ip_network(part) for part in parts]

    def __contains__(self, host: str) -> bool:
        """Whether a host lies in one of them."""
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return any((mapped or address) in network for network in self._networks)
