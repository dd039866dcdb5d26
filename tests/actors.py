"""The people and the tokens that act in tests."""

from dataclasses import replace

from server.api.auth.permissions import ALL, WITHOUT_SCOPES
from server.api.auth.principals import Principal, find_holders, note_uses
from server.core.context import Context
from server.core.errors import UnauthenticatedError
from server.core.subject import Actor
from server.core.visibility.scope import SYSTEM_SCOPE, Scope
from trainyard.protocol.rest.access import Permission

ADA, BOB, EVE, TESTER = (
    Actor(
        name,
        f"token of {name}",
        permissions=WITHOUT_SCOPES,
        token_allows=WITHOUT_SCOPES,
        scope=SYSTEM_SCOPE,
    )
    for name in ("ada", "bob", "eve", "test")
)
ADMIN = Actor(
    "admin",
    "token of the admin",
    is_admin=True,
    permissions=ALL,
    token_allows=ALL,
    scope=SYSTEM_SCOPE,
)
SAME_NAME = replace(ADA, token_id="another token of this name")
NO_TOKEN = replace(ADA, token_id=None)


def limited_to(actor: Actor, *permissions: Permission) -> Actor:
    """Return an actor with only these permissions, in all projects."""
    scope = Scope(dict.fromkeys(permissions), everywhere=True)
    allowed = frozenset(permissions)
    return replace(actor, permissions=allowed, token_allows=allowed, scope=scope)


def authenticate_token(context: Context, token: str) -> Principal:
    """Return the holder of a token and store the use, or raise its error."""
    (holder,) = find_holders(context, [token])
    if isinstance(holder, UnauthenticatedError):
        raise holder
    if holder.unnoted_use and holder.token_id is not None:
        note_uses(context, [holder.token_id])
    return holder
