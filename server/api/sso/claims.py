"""Checks of signed tokens: ID tokens (OpenID Connect Core 3.1.3.7) and logout tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jwt import JWTClaimsRegistry

from server.api.sso.faults import MALFORMED, LoginError, LoginFault
from server.core.people.identity_tables import MAX_GROUP

logger = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "ES256", "PS256", "EdDSA", "Ed25519")
"""Legal signatures: asymmetric ones only. `Ed25519` is the newer name of `EdDSA` (RFC 9864)."""
LEEWAY_SECONDS = 60
"""Assumed maximum difference between the clocks of server and issuer, in seconds."""
MAX_SUBJECT, MAX_GROUPS = 255, 1000
LOGOUT = "http://schemas.openid.net/event/backchannel-logout"
MAX_LOGOUT_AGE_SECONDS = 600
"""Maximum age of a logout token, in seconds."""


def decoded(token: str, keys: KeySet) -> dict[str, Any]:
    """Return the claims of a token with a legal signature by one of these keys.

    Raises:
        LoginError: no key made the signature, or the algorithm is not legal.
    """
    found = [*keys]
    if not found:
        raise LoginError(LoginFault.INVALID, "the issuer has no key with the id of the token")
    error: Exception | None = None
    for key in found:  # one, unless the token names no key
        try:
            return jwt.decode(token, key, algorithms=ALGORITHMS).claims
        except (JoseError, *MALFORMED) as refused:
            error = refused
    raise LoginError(LoginFault.INVALID, f"the signature of the token is not valid: {error!r}")


def check_id_token(
    claims: Mapping[str, Any],
    *,
    issuer: str,
    client_id: str,
    nonce: str | None,
    now: int,
) -> None:
    """Check issuer, audience, authorized party, times and nonce of an ID token.

    Raises:
        LoginError: a claim is missing or not valid.
    """
    params = {"client_id": client_id}
    if nonce is not None:
        params["nonce"] = nonce
    token = CodeIDToken(
        dict(claims),
        {},
        options={
            "iss": {"essential": True, "value": issuer},
            "aud": {"essential": True, "value": client_id},
        },
        params=params,
    )
    try:
        token.validate(now=now, leeway=LEEWAY_SECONDS)
    except (JoseError, *MALFORMED) as error:
        raise LoginError(LoginFault.INVALID, f"the ID token is not valid: {error}") from None
    if not is_subject(claims["sub"]):
        raise LoginError(LoginFault.INVALID, f"sub must be a text of 1 to {MAX_SUBJECT} characters")


def check_logout_token(claims: Mapping[str, Any], *, issuer: str, client_id: str, now: int) -> None:
    """Check a logout token (OpenID Connect Back-Channel Logout 2.6).

    Raises:
        LoginError: a claim is missing or not valid.
    """
    registry = JWTClaimsRegistry(
        now=now,
        leeway=LEEWAY_SECONDS,
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "value": client_id},
        iat={"essential": True},
        jti={"essential": True},
        events={"essential": True},
    )
    try:
        registry.validate(dict(claims))
    except (JoseError, *MALFORMED) as error:
        raise LoginError(LoginFault.INVALID, f"the logout token is not valid: {error}") from None
    events = claims["events"]
    subject, session = claims.get("sub"), claims.get("sid")
    faults = {
        "events": not isinstance(events, dict) or not isinstance(events.get(LOGOUT), dict),
        "nonce": "nonce" in claims,
        "sub or sid": subject is None and session is None,
        "sub": subject is not None and not is_subject(subject),
        "sid": session is not None and not is_subject(session),
        "iat": not claims["iat"] >= now - MAX_LOGOUT_AGE_SECONDS,  # also for NaN
    }
    wrong = [name for name, is_wrong in faults.items() if is_wrong]
    if wrong:
        raise LoginError(LoginFault.INVALID, f"the logout token is not valid: {', '.join(wrong)}")


def groups_in(claims: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Return the groups of a claim, each once and sorted; None without the claim.

    Other values than texts are omitted. At most `MAX_GROUPS` names of at most `MAX_GROUP`
    characters are returned.
    """
    given = claims.get(name)
    if given is None:
        return None
    listed = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    if len(listed) > MAX_GROUPS:
        logger.warning("%d groups of %r: %d count", len(listed), claims.get("sub"), MAX_GROUPS)
    legal = {
        each
        for each in listed[:MAX_GROUPS]
        if isinstance(each, str) and 0 < len(each) <= MAX_GROUP and each.isprintable()
    }
    return tuple(sorted(legal))


def is_subject(given: object, *, longest: int = MAX_SUBJECT) -> bool:
    """Return whether a value can be the id of a person or of a session of the issuer.

    The database stores neither NUL nor surrogates.
    """
    return (
        isinstance(given, str)
        and 0 < len(given) <= longest
        and not any(each == "\0" or "\ud800" <= each <= "\udfff" for each in given)
    )
