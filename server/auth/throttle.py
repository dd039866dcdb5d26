"""Failed logins, counted for each address in bounded memory."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from server.addresses import counted_as
from server.errors import TooManyError

MAX_FAILURES = 10
WINDOW = timedelta(minutes=1)
"""Period in which an address may fail `MAX_FAILURES` times; further logins wait for its end."""
MAX_ADDRESSES = 10_000
"""Most addresses in memory; the oldest windows are dropped first."""


@dataclass
class _Window:
    begin: datetime
    failures: int = 0


class FailedLogins:
    """The failed logins of one server process; safe between threads."""

    def __init__(self) -> None:
        self._windows: OrderedDict[str, _Window] = OrderedDict()  # by their begin
        self._lock = threading.Lock()

    def check(self, host: str, now: datetime) -> None:
        """Check that an address may try to log in.

        Raises:
            TooManyError: it has failed too often; the answer carries the time until the next try.
        """
        with self._lock:
            window = self._windows.get(counted_as(host))
        if window is None or window.failures < MAX_FAILURES:
            return
        left = (window.begin + WINDOW - now).total_seconds()
        if left > 0:
            seconds = math.ceil(left)
            raise TooManyError(
                f"{MAX_FAILURES} logins of this address failed; try again in {seconds} seconds",
                retry_seconds=seconds,
            )

    def note(self, host: str, now: datetime) -> None:
        """Count a failure."""
        key = counted_as(host)
        with self._lock:
            window = self._windows.get(key)
            if window is None or now - window.begin >= WINDOW:
                self._windows.pop(key, None)
                window = self._windows[key] = _Window(now)
            window.failures += 1
            while len(self._windows) > MAX_ADDRESSES:
                self._windows.popitem(last=False)
