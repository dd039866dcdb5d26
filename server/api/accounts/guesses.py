"""The check of a password: counted before it begins, in threads of its own."""

from __future__ import annotations

from pydantic import SecretStr
from starlette.concurrency import run_in_threadpool

from server.api.accounts.logins import (
    WRONG,
    Account,
    counters,
    find_account,
    store_new_parameters,
)
from server.api.accounts.passwords import is_outdated, is_right, new_hash
from server.api.accounts.throttle import count_guess, take_back
from server.core.context import Context
from server.core.errors import UnauthenticatedError


async def checked(context: Context, name: str, password: SecretStr, *, host: str) -> Account:
    """Return the account of a user with the right password.

    The guess is counted first, and taken back if the password is right or was not checked. The time
    is the same for a wrong password and an unknown name.

    Raises:
        UnauthenticatedError: name or password is wrong, or the user is disabled.
        TooManyError: too many logins of this address or account have failed.
        UnavailableError: too many logins wait.
    """
    limits = await run_in_threadpool(counters, context, name, host)
    counted = await run_in_threadpool(count_guess, context, limits)
    account = await run_in_threadpool(find_account, context, name)
    try:
        found = await is_right(password, None if account is None else account.password)
    except Exception:
        await run_in_threadpool(take_back, context, counted)
        raise
    if account is None or not found:
        raise UnauthenticatedError(WRONG)
    await run_in_threadpool(take_back, context, counted)
    if account.password is not None and is_outdated(account.password):
        stored = await new_hash(password)
        await run_in_threadpool(store_new_parameters, context, account, new_hash=stored)
        return await run_in_threadpool(_again, context, name)
    return account


def _again(context: Context, name: str) -> Account:
    account = find_account(context, name)
    if account is None:
        raise UnauthenticatedError(WRONG)
    return account
