"""Versions of the worker protocol that the server accepts."""

from __future__ import annotations

from server.core.errors import InvalidRequestError
from trainyard.protocol.worker_messages import OLDEST_PROTOCOL, PROTOCOL


def check_protocol(protocol: int) -> None:
    """Raise `InvalidRequestError` if the server does not accept this version of the protocol."""
    if not OLDEST_PROTOCOL <= protocol <= PROTOCOL:
        legal = [*range(OLDEST_PROTOCOL, PROTOCOL + 1)]
        raise InvalidRequestError.at(
            "/protocol", f"{protocol} is not understood; this server accepts {legal}"
        )
