"""Versions of the worker protocol that the server accepts."""

from __future__ import annotations

from server.core.errors import InvalidRequestError
from trainyard.protocol.worker_messages import OLDEST_PROTOCOL, PROTOCOL


def check_protocol(protocol: int, *, oldest: int = OLDEST_PROTOCOL) -> None:
    """Check the version of a message.

    Args:
        protocol: version of the protocol in the message.
        oldest: oldest version that the server accepts for this kind of message.

    Raises:
        InvalidRequestError: the server does not accept this version.
    """
    if not oldest <= protocol <= PROTOCOL:
        legal = [*range(oldest, PROTOCOL + 1)]
        raise InvalidRequestError.at(
            "/protocol", f"{protocol} is not understood; this server accepts {legal}"
        )
