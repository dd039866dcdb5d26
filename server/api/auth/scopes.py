"""Which scopes a new token may have."""

from __future__ import annotations

from server.api.auth.permissions import held_by_token
from server.api.auth.tokens import TokenKind
from server.core.errors import ForbiddenError, InvalidRequestError
from server.core.subject import Actor
from trainyard.base.problems import Problem
from trainyard.protocol.rest.access import TokenRequest


def check_scopes(request: TokenRequest, actor: Actor) -> None:
    """Check the scopes of a new token, and that its permissions are among those of the actor.

    Raises:
        InvalidRequestError: the kind of token has no scopes, or a scope is given twice.
        ForbiddenError: the new token would have permissions that the actor does not have.
    """
    scopes = request.scopes
    if scopes is not None and request.kind != "api":
        raise InvalidRequestError.at(
            "/scopes", f"a token of kind {request.kind!r} has no scopes; legal only for kind 'api'"
        )
    given = tuple(scopes or ())
    for place, scope in enumerate(given):
        if scope in given[:place]:
            raise InvalidRequestError.at(f"/scopes/{place}", f"{scope.value!r} is given twice")
    if request.kind == "login" and actor.token_id is not None and not actor.is_admin:
        raise ForbiddenError(
            f"a login code opens a session of the admin token; the token {actor.name!r} may create "
            "none, only the admin token may"
        )
    for permission in sorted(held_by_token(TokenKind(request.kind), scopes)):
        if not actor.may(permission):
            detail = f"the new token would have {permission}"
            raise actor.refusal(permission, [Problem(pointer="/scopes", detail=detail)])
