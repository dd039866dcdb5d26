"""Which tokens a caller may create."""

from __future__ import annotations

from server.api.auth.permissions import WITHOUT_SCOPES
from server.core.errors import ForbiddenError, InvalidRequestError
from server.core.subject import Actor
from trainyard.base.problems import Problem
from trainyard.protocol.rest.access import Permission, TokenRequest


def check_token_request(request: TokenRequest, actor: Actor) -> None:
    """Check the kind and the scopes of a new token: it may have no permission that the actor lacks.

    Raises:
        InvalidRequestError: the kind of token has no scopes, or a scope is given twice.
        ForbiddenError: the actor may not create this kind, or the new token would have permissions
            that the actor does not have.
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
    if request.kind == "login" and actor.user_id is not None and not actor.is_admin:
        whose = actor.credential or f"the token {actor.name!r}"
        raise ForbiddenError(
            f"a login code opens a session of the admin token; {whose} may create none, only the "
            "admin token may"
        )
    if request.kind == "join" and not actor.may(Permission.TOKENS_ADMIN):
        detail = "a node that joins receives specs and secrets of jobs"
        raise actor.refusal(Permission.TOKENS_ADMIN, [Problem(pointer="/kind", detail=detail)])
    if request.kind == "api":
        _check_permissions(scopes, actor)


def _check_permissions(scopes: tuple[Permission, ...] | None, actor: Actor) -> None:
    """Compare with what the actor's token allows: the user may get another role later."""
    if scopes is not None:
        lacking = frozenset(scopes) - actor.permissions
    else:
        lacking = WITHOUT_SCOPES - actor.token_allows
    for permission in sorted(lacking):
        detail = f"the new token would have {permission}"
        raise actor.refusal(permission, [Problem(pointer="/scopes", detail=detail)])
