"""The check of a password: counted before it begins, in threads of its own."""

from __future__ import annotations

from dataclasses import replace

from pydantic import SecretStr
from starlette.concurrency import run_in_threadpool

from server.api.accounts.logins import (
    WRONG,
    Account,
    counters,
    find_account,
    store_new_parameters,
)
from server.api.accounts.passwords import Holders, holders_of, is_outdated, is_right, new_hash
from server.api.accounts.throttle import count_guess, take_back
from server.core.audit.request_rows import CallerIdentity, current_request
from server.core.context import Context
from server.core.errors import UnauthenticatedError, UnavailableError


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
    audited = current_request()
    if audited is not None and account is not None and audited.caller is None:
        audited.named = CallerIdentity(user=account.name, user_id=account.id)
    holders = holders_of(name, host)
    try:
        stored = None if account is None else account.password
        found = await is_right(password, stored, holders=holders)
    except Exception:
        await run_in_threadpool(take_back, context, counted)
        raise
    if account is None or not found:
        raise UnauthenticatedError(WRONG)
    await run_in_threadpool(take_back, context, counted)
    if account.password is not None and is_outdated(account.password):
        return await _with_new_parameters(context, account, password, holders=holders)
    return account


async def _with_new_parameters(
    context: Context, account: Account, password: SecretStr, *, holders: Holders
) -> Account:
    """Return the account with a hash that has the present parameters.

    If the password was changed meanwhile, the account keeps the hash that was checked. Whoever
    holds the account then sees that this hash is no longer stored.
    """
    try:
        stored = await new_hash(password, holders=holders)
    except UnavailableError:  # a right login needs no new hash
        return account
    is_stored = await run_in_threadpool(store_new_parameters, context, account, new_hash=stored)
    return replace(account, password=stored) if is_stored else account
