"""Passwords: Argon2id hashes, computed by a few threads of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from pydantic import SecretStr

from server.core.errors import InvalidRequestError, UnavailableError

Value = TypeVar("Value")

AT_ONCE = 4
"""Maximum number of hashes that a process computes at the same time; each takes 64 MiB of memory
and about 0.1 s."""
MAX_WAITING = 32
"""Maximum number of logins that wait for a free thread; further logins get 503."""
UNKNOWN = (
    "$argon2id$v=19$m=65536,t=3,p=4$gIO2xkwGoUK/dnOOB/UU1Q$"
    "kRFw7UA8hkrR6oxm07ivAHYQt7T7EQIRDFgIPz3rrRA"
)
"""Hash for accounts without a password, so that the time of a login does not show whether the
account exists."""

_HASHER = PasswordHasher()  # the parameters of RFC 9106 for machines with little memory
_THREADS = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="passwords")
_PLACES = threading.BoundedSemaphore(AT_ONCE + MAX_WAITING)


async def is_right(password: SecretStr, stored: str | None) -> bool:
    """Return whether a password has the stored hash; False without a hash, after the same time.

    Raises:
        UnavailableError: too many logins wait.
    """
    found = await _in_thread(lambda: _verify(password, stored or UNKNOWN))
    return found and stored is not None


async def new_hash(password: SecretStr) -> str:
    """Return the hash of a new password.

    Raises:
        UnavailableError: too many logins wait.
    """
    return await _in_thread(lambda: _HASHER.hash(password.get_secret_value()))


def is_outdated(stored: str) -> bool:
    """Return whether the stored hash has other parameters than new ones."""
    return _HASHER.check_needs_rehash(stored)


def check_password(password: SecretStr, name: str, *, pointer: str) -> None:
    """Check a new password of a user; its length is already checked.

    Raises:
        InvalidRequestError: the password is the name of the user.
    """
    if password.get_secret_value().lower() == name:
        raise InvalidRequestError.at(pointer, "is the user's name; legal: any other text")


def _verify(password: SecretStr, stored: str) -> bool:
    try:
        return _HASHER.verify(stored, password.get_secret_value())
    except (VerificationError, InvalidHashError):
        return False


async def _in_thread(compute: Callable[[], Value]) -> Value:
    """Compute in one of the threads for passwords, never in those of other requests."""
    if not _PLACES.acquire(blocking=False):
        raise UnavailableError("too many logins at once; try again soon")

    def run() -> Value:
        try:
            return compute()
        finally:  # here, because the request may have ended before the thread began
            _PLACES.release()

    return await asyncio.wrap_future(_THREADS.submit(run))
