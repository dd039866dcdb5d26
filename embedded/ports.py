"""Free ports on this machine."""

from __future__ import annotations

import socket

TRIED = 200


def next_free_port(host: str, first: int) -> int:
    """Return the first port from `first` on that is free.

    Raises:
        OSError: none of the next 200 is free, or the host is not one of this machine.
    """
    for port in range(first, min(first + TRIED, 65_536)):
        if _is_free(host, port):
            return port
    raise OSError(f"no free port from {first} to {min(first + TRIED, 65_536) - 1} on {host}")


def any_free_port(host: str) -> int:
    """Return a free port that the kernel chooses."""
    with _bound(host, 0) as probe:
        return int(probe.getsockname()[1])


def _is_free(host: str, port: int) -> bool:
    try:
        with _bound(host, port):
            return True
    except OSError as error:
        if isinstance(error, socket.gaierror):
            raise
        return False


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    probe = socket.socket(family, kind, protocol)
    # Same option as the server: ports of recently closed connections count as free.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(address)
    except OSError:
        probe.close()
        raise
    return probe
