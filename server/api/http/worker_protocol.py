"""Versions of the protocol of workers that the server understands."""

from __future__ import annotations

from server.core.errors import InvalidRequestError
from trainyard.protocol.worker_messages import PROTOCOL


def check_protocol(protocol: int) -> None:
    """Reject unsupported protocol versions: this one and the one before are accepted.

    Raises:
        InvalidRequestError: it is older or newer.
    """
    if protocol not in (PROTOCOL - 1, PROTOCOL):
        legal = [PROTOCOL - 1, PROTOCOL]
        raise InvalidRequestError.at(
            "/protocol", f"{protocol} is not understood; this server accepts {legal}"
        )
