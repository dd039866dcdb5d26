"""The network interface from a node to the other nodes of an attempt."""

from __future__ import annotations

import logging
import socket
import struct
import sys
from collections.abc import Iterable, Mapping

logger = logging.getLogger(__name__)

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that name the network interface to gloo, torch's RPC and NCCL. Without them, gloo uses
the address of the host's own name. On Debian that is 127.0.1.1, which no other node can reach.
"""
SECONDS = 5.0

# Constants of linux/netlink.h and linux/rtnetlink.h.
_RTM_NEWROUTE, _RTM_GETROUTE, _NLM_F_REQUEST = 24, 26, 1
_RTA_DST, _RTA_OIF = 1, 4
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, bits of the destination, seven fields unused here
_ATTRIBUTE = struct.Struct("=HH")  # length, type


def interface_environment(hosts: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return variables that select the network interface to other nodes.

    Args:
        hosts: names or addresses of the other nodes; empty for an attempt of one node.
        given: variables of the node and the job; these are not returned.
    """
    missing = [name for name in INTERFACE_VARIABLES if not given.get(name)]
    interface = interface_towards(hosts) if missing else None
    return {} if interface is None else dict.fromkeys(missing, interface)


def interface_towards(hosts: Iterable[str]) -> str | None:
    """Return the interface of the route to `hosts`; None if no route is known.

    The first host on another machine decides. If all hosts are on this machine, the result is the
    loopback interface.
    """
    found = None
    for host in hosts:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0]
            name = socket.if_indextoname(_route_to(family, str(address[0])))
        except OSError as error:
            logger.warning("no route to %s is known: %s", host, error)
            continue
        if name != "lo":
            return name
        found = name
    return found


def _route_to(family: int, address: str) -> int:
    """Return the index of the interface through which the kernel reaches an address."""
    packed = socket.inet_pton(family, address.partition("%")[0])
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), _RTA_DST) + packed
    route = _ROUTE.pack(family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0)
    length = _HEADER.size + len(route) + len(attribute)
    header = _HEADER.pack(length, _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(SECONDS)
        kernel.sendto(header + route + attribute, (0, 0))
        answer = kernel.recv(65536)
    length, kind, *_ = _HEADER.unpack_from(answer)
    if kind == _RTM_NEWROUTE:
        at = _HEADER.size + _ROUTE.size
        while at + _ATTRIBUTE.size <= length:
            size, name = _ATTRIBUTE.unpack_from(answer, at)
            if name == _RTA_OIF:
                return int.from_bytes(answer[at + _ATTRIBUTE.size : at + size], sys.byteorder)
            at += (size + 3) & ~3  # attributes start at multiples of four bytes
    raise OSError("the kernel has no route to it")
