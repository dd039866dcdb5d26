"""Count of open connections, by address and in total."""

from __future__ import annotations

import resource
from collections import Counter

from server.core.addresses import Networks, counted_as
from trainyard.base.file_limit import raise_file_limit

RESERVED_DESCRIPTORS = 200
"""File descriptors reserved for other uses: database, log, dashboard files, libraries."""


class Connections:
    """Admits connections up to a limit per address and a total limit."""

    def __init__(self, *, per_address: int, total: int, exempt: Networks) -> None:
        """Take the limits; connections of `exempt` proxies count only towards the total limit."""
        self._per_address = per_address
        self._total = total
        self._exempt = exempt
        self._by_address: Counter[str] = Counter()
        self._open = 0

    def admit(self, host: str) -> str | None:
        """Count a new connection and return None, or return the reason for its refusal."""
        if self._open >= self._total:
            return f"the server has {self._total} open connections, its limit"
        if host not in self._exempt:
            key = counted_as(host)
            if self._by_address[key] >= self._per_address:
                return f"{key} has {self._per_address} open connections, the limit of an address"
            self._by_address[key] += 1
        self._open += 1
        return None

    def release(self, host: str) -> None:
        """Stop counting an admitted connection."""
        self._open -= 1
        if host in self._exempt:
            return
        key = counted_as(host)
        self._by_address[key] -= 1
        if not self._by_address[key]:
            del self._by_address[key]


def connections_possible() -> int:
    """Raise the soft limit on file descriptors; return the number left for connections."""
    hard = raise_file_limit()
    if hard == resource.RLIM_INFINITY:
        hard = 1024 * 1024
    return max(RESERVED_DESCRIPTORS, hard - RESERVED_DESCRIPTORS)
