"""Public keys of the issuer: read when they are needed, and seldom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key

from server.api.sso.faults import MALFORMED, LoginError, LoginFault
from server.api.sso.issuer_calls import IssuerCalls

METADATA_SECONDS = 3600.0
"""Time for which metadata and keys are used without a new request, in seconds. A withdrawn key is
trusted for at most this time."""
DOWN_SECONDS = 5.0
"""Time after a failed request for metadata or keys in which logins fail without a new one, in
seconds.
"""
KEYS_PAUSE_SECONDS = 60.0
"""Minimum time between two requests for keys because of a token that no key has signed, in seconds.
"""
KEYS_WAIT_SECONDS = 2.0
"""Maximum time for which a login waits for keys that another one reads, in seconds."""
MAX_KEYS = 100


class IssuerKeys:
    """The public keys of the issuer, which threads share."""

    def __init__(self, calls: IssuerCalls, now: Callable[[], float]) -> None:
        """Take the calls to the issuer, and a monotonic clock in seconds."""
        self._calls, self._now = calls, now
        self._lock = threading.Lock()  # held while the keys are read
        self._read_at = self._tried_at = float("-inf")
        self._keys: Sequence[Key] = ()

    def present(self, url: str) -> Sequence[Key]:
        """Return keys that are at most `METADATA_SECONDS` old.

        Raises:
            LoginError: the issuer is down, or another thread reads the keys for a long time.
        """
        if self._is_fresh():
            return self._keys
        if not self._lock.acquire(timeout=KEYS_WAIT_SECONDS):
            raise LoginError(LoginFault.BUSY, "another login reads the keys of the issuer")
        try:
            if self._is_fresh():  # the other thread has read them
                return self._keys
            if self._now() - self._tried_at < DOWN_SECONDS:
                raise LoginError(LoginFault.ISSUER_DOWN, f"{url} did not respond just now")
            return self._read(url)
        finally:
            self._lock.release()

    def newer(self, url: str, known: Sequence[Key]) -> Sequence[Key]:
        """Return the keys after a token that none of the known ones has signed.

        Anyone can send such a token, so the keys are read at most every `KEYS_PAUSE_SECONDS`, and
        no thread waits for another one.

        Raises:
            LoginError: the issuer is down.
        """
        if not self._lock.acquire(blocking=False):
            return known
        try:
            if self._now() - self._tried_at < KEYS_PAUSE_SECONDS:
                return self._keys
            return self._read(url)
        finally:
            self._lock.release()

    def _is_fresh(self) -> bool:
        return self._now() - self._read_at < METADATA_SECONDS

    def _read(self, url: str) -> Sequence[Key]:
        before, self._tried_at = self._tried_at, self._now()  # first: it also holds after a failure
        try:
            listed = self._calls.get(url).get("keys")
        except LoginError as error:
            if error.fault is LoginFault.BUSY:  # the issuer got no request
                self._tried_at = before
            raise
        found = []
        for data in (listed if isinstance(listed, list) else [])[:MAX_KEYS]:
            try:
                found.append(JWKRegistry.import_key(data))
            except (JoseError, *MALFORMED):
                continue  # of a kind that this client does not use
        self._keys, self._read_at = found, self._now()
        return found
