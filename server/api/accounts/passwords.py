"""Passwords: Argon2id hashes, computed by a few threads of their own."""

from __future__ import annotations

import asyncio
import threading
import unicodedata
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from pydantic import SecretStr

from server.core.addresses import counted_as
from server.core.errors import InvalidRequestError, UnavailableError

Value = TypeVar("Value")

AT_ONCE = 4
"""Maximum number of hashes that a process computes at the same time; each takes 64 MiB of memory
and about 0.1 s."""
MAX_WAITING = 32
"""Maximum number of logins that wait for a free thread; further logins get 503."""
MAX_OF_ACCOUNT, MAX_OF_ADDRESS = 2, 12
"""Maximum number of these places for one account and for one address."""
UNKNOWN = (
    "$argon2id$v=19$m=65536,t=3,p=4$gIO2xkwGoUK/dnOOB/UU1Q$"
    "kRFw7UA8hkrR6oxm07ivAHYQt7T7EQIRDFgIPz3rrRA"
)
"""Hash for accounts without a password, so that the time of a login does not show whether the
account exists."""

_HASHER = PasswordHasher()  # the parameters of RFC 9106 for machines with little memory
_THREADS = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="passwords")


Holders = tuple[tuple[str, int], ...]
"""Who computes a hash: keys with the maximum number of places that each may hold."""


class HashPlaces:
    """Places for hashes that are computed or wait; no account and no address holds all of them."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()
        self._taken = 0

    def take(self, holders: Holders) -> None:
        """Take a place.

        Raises:
            UnavailableError: all places are taken, or a holder has its share.
        """
        with self._lock:
            if self._taken >= self._total:
                raise UnavailableError("too many logins at once; try again soon")
            for key, most in holders:
                if self._held[key] >= most:
                    raise UnavailableError(
                        f"{most} logins of one {key.partition(' ')[0]} at once; try again soon"
                    )
            self._taken += 1
            self._held.update(key for key, _ in holders)

    def free(self, holders: Holders) -> None:
        """Free a place."""
        with self._lock:
            self._taken -= 1
            for key, _ in holders:
                self._held[key] -= 1
                if not self._held[key]:
                    del self._held[key]


_PLACES = HashPlaces(AT_ONCE + MAX_WAITING)


def holders_of(name: str, host: str) -> Holders:
    """Return the holders of a hash for a login with this name from this address."""
    account = f"account {name.strip().lower()[:100]}"
    return (account, MAX_OF_ACCOUNT), (f"address {counted_as(host)}", MAX_OF_ADDRESS)


async def is_right(password: SecretStr, stored: str | None, *, holders: Holders) -> bool:
    """Return whether a password has the stored hash; False without a hash, after the same time.

    Raises:
        UnavailableError: too many logins wait.
    """
    found = await _in_thread(lambda: _verify(password, stored or UNKNOWN), holders)
    return found and stored is not None


async def new_hash(password: SecretStr, *, holders: Holders) -> str:
    """Return the hash of a new password.

    Raises:
        UnavailableError: too many logins wait.
    """
    return await _in_thread(lambda: _HASHER.hash(_text(password)), holders)


def is_outdated(stored: str) -> bool:
    """Return whether the stored hash has other parameters than new ones."""
    return _HASHER.check_needs_rehash(stored)


def check_password(password: SecretStr, name: str, *, pointer: str) -> None:
    """Check a new password of a user; its length is already checked.

    Raises:
        InvalidRequestError: the password is the name of the user.
    """
    if _text(password).lower() == name:
        raise InvalidRequestError.at(pointer, "is the user's name; legal: any other text")


def _text(password: SecretStr) -> str:
    """Return the password in Unicode's form NFC, because keyboards write letters differently."""
    return unicodedata.normalize("NFC", password.get_secret_value())


def _verify(password: SecretStr, stored: str) -> bool:
    try:
        return _HASHER.verify(stored, _text(password))
    except (VerificationError, InvalidHashError):
        return False


async def _in_thread(compute: Callable[[], Value], holders: Holders) -> Value:
    """Compute in one of the threads for passwords, never in those of other requests."""
    _PLACES.take(holders)
    try:
        future = _THREADS.submit(compute)
    except BaseException:
        _PLACES.free(holders)
        raise
    # Also called for a future that is cancelled before it begins.
    future.add_done_callback(lambda _: _PLACES.free(holders))
    return await asyncio.wrap_future(future)
