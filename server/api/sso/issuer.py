"""The issuer as its client sees it: metadata, keys, and the persons that it confirms."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import quote

import httpx
from authlib.common.errors import AuthlibBaseError
from authlib.oauth2.client import OAuth2Client
from authlib.oidc.discovery import get_well_known_url
from joserfc.errors import JoseError
from joserfc.jwk import Key, KeySet
from joserfc.jws import extract_compact
from pydantic import AfterValidator, BaseModel, ValidationError

from server.api.sso.claims import (
    check_id_token,
    check_logout_token,
    decoded,
    groups_in,
    is_subject,
)
from server.api.sso.faults import MALFORMED, GrantEndedError, LoginError, LoginFault
from server.api.sso.issuer_calls import IssuerCalls
from server.api.sso.issuer_keys import DOWN_SECONDS, METADATA_SECONDS, IssuerKeys
from server.core.context import Context
from trainyard.base.loopback import is_secure_url, uses_tls

MAX_SESSION = 200
"""Maximum length of the issuer's id of a session, in characters; a longer id is ignored."""
CALLBACK_PATH = "/api/v1/auth/oidc/callback"

_REFUSALS = (AuthlibBaseError, httpx.HTTPStatusError, *MALFORMED)
"""Errors of Authlib for a reply that is no token."""


def _secure(url: str) -> str:
    if not is_secure_url(url.partition("?")[0]):
        raise ValueError("no https")
    return url


Endpoint = Annotated[str, AfterValidator(_secure)]
_ENDPOINTS = (
    "authorization_endpoint",
    "token_endpoint",
    "jwks_uri",
    "userinfo_endpoint",
    "end_session_endpoint",
)


class IssuerMetadata(BaseModel):
    """What discovery returns, as far as this client needs it; other fields are ignored."""

    issuer: str
    authorization_endpoint: Endpoint
    token_endpoint: Endpoint
    jwks_uri: Endpoint
    userinfo_endpoint: Endpoint | None = None
    end_session_endpoint: Endpoint | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False

    def check_endpoints(self) -> None:
        """Check that only an issuer on this machine has endpoints without https.

        Raises:
            LoginError: an issuer with https has an endpoint without.
        """
        if not uses_tls(self.issuer):
            return
        endpoints = self.model_dump(include={*_ENDPOINTS})
        plain = [name for name, url in endpoints.items() if url is not None and not uses_tls(url)]
        if plain:
            raise LoginError(LoginFault.INVALID, f"metadata: {', '.join(plain)} have no https")


@dataclass(frozen=True)
class IssuedPerson:
    """A person that the issuer has confirmed."""

    subject: str
    claims: Mapping[str, Any] = field(repr=False)
    """Claims of the ID token, and of the user info for claims that the ID token lacks."""
    groups: tuple[str, ...] | None
    """Groups of the person; None if the issuer gave no claim for them."""
    refresh_token: str | None = field(repr=False)
    session: str | None
    """The issuer's id of its session (`sid`)."""


@dataclass(frozen=True)
class EndedAtIssuer:
    """What a logout token names: a session of the issuer, or all sessions of a person."""

    subject: str | None
    session: str | None
    issued_at: int
    """Time of the logout, in seconds since 1970."""


class Issuer:
    """The issuer of the settings. Calls block, so endpoints run them in threads."""

    def __init__(self, context: Context) -> None:
        """Take the context; its settings name an issuer."""
        settings = context.settings
        assert settings.oidc_issuer is not None
        assert settings.oidc_client_id is not None
        self.url: str = settings.oidc_issuer
        self.client_id: str = settings.oidc_client_id
        self._secret = settings.oidc_client_secret()
        self._context = context
        self._calls = IssuerCalls()
        self._lock = threading.Lock()
        self._metadata: IssuerMetadata | None = None
        self._metadata_at = self._down_until = float("-inf")
        self._keys = IssuerKeys(self._calls, self._now)

    @property
    def callback_url(self) -> str:
        """URL to which the issuer sends browsers after a login."""
        return f"{(self._context.settings.public_url or '').rstrip('/')}{CALLBACK_PATH}"

    def metadata(self) -> IssuerMetadata:
        """Return the metadata, which is read again after `METADATA_SECONDS`.

        Raises:
            LoginError: the issuer is down, or its metadata is not valid.
        """
        with self._lock:
            now = self._now()
            if self._metadata is not None and now - self._metadata_at < METADATA_SECONDS:
                return self._metadata
            if now < self._down_until:
                raise LoginError(LoginFault.ISSUER_DOWN, f"{self.url} did not respond just now")
        try:
            found = self._read_metadata()
        except LoginError as error:
            if error.fault is not LoginFault.BUSY:  # busy: the issuer got no request
                with self._lock:
                    self._down_until = self._now() + DOWN_SECONDS
            raise
        with self._lock:
            self._metadata, self._metadata_at = found, now
        return found

    def login_url(self, *, state: str, nonce: str, verifier: str) -> str:
        """Return the URL at the issuer where a person logs in.

        Raises:
            LoginError: the issuer is down, or its metadata is not valid.
        """
        options = {"nonce": nonce}
        if "offline_access" in self._context.settings.oidc_scopes.split():
            options["prompt"] = "consent"  # without it, the issuer ignores the scope (OIDC Core 11)
        url, _ = self._client(method="none").create_authorization_url(
            self.metadata().authorization_endpoint,
            state=state,
            code_verifier=verifier,
            **options,
        )
        return str(url)

    def check_sender(self, given: str | None) -> None:
        """Check that a response to a login comes from this issuer (RFC 9207).

        Raises:
            LoginError: it comes from another issuer, or does not name its issuer as promised.
        """
        is_missing = (
            given is None and self.metadata().authorization_response_iss_parameter_supported
        )
        if is_missing or (given is not None and given != self.url):
            raise LoginError(
                LoginFault.INVALID, f"the response has iss={given!r}, not {self.url!r}"
            )

    def exchange(self, code: str, *, nonce: str, verifier: str) -> IssuedPerson:
        """Return the person behind the code of a login.

        Raises:
            LoginError: the issuer is down, refuses the code, or its reply is not valid.
        """
        try:
            reply = self._oauth().fetch_token(
                self.metadata().token_endpoint,
                grant_type="authorization_code",
                code=code,
                code_verifier=verifier,
                redirect_uri=self.callback_url,
            )
        except _REFUSALS as error:
            raise LoginError(LoginFault.INVALID, f"the issuer refused the code: {error}") from None
        claims = self._checked(_text_in(reply, "id_token"), nonce=nonce)
        return self._person(claims, reply)

    def refreshed(self, refresh_token: str, *, subject: str) -> IssuedPerson:
        """Return the person of a refresh token, with the present groups.

        Raises:
            GrantEndedError: the issuer refuses the token for good.
            LoginError: the issuer is down, or its reply is not valid.
        """
        try:
            reply = self._oauth().refresh_token(
                self.metadata().token_endpoint, refresh_token=refresh_token
            )
        except _REFUSALS as error:
            if getattr(error, "error", None) == "invalid_grant":
                raise GrantEndedError from None
            raise LoginError(LoginFault.INVALID, f"the issuer refused: {error}") from None
        claims: Mapping[str, Any] = {"sub": subject}
        if "id_token" in reply:
            claims = self._checked(_text_in(reply, "id_token"), nonce=None)
        if claims["sub"] != subject:
            raise LoginError(LoginFault.INVALID, "the refreshed ID token is of another person")
        return self._person(claims, reply)

    def logout_url(self, *, back_to: str) -> str | None:
        """Return the URL that ends the person's session at the issuer; None if it has no such URL.

        Raises:
            LoginError: the issuer is down, or its metadata is not valid.
        """
        end = self.metadata().end_session_endpoint
        if end is None:
            return None
        given = {"client_id": self.client_id, "post_logout_redirect_uri": back_to}
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in given.items())
        return f"{end}{'&' if '?' in end else '?'}{query}"

    def ended(self, logout_token: str) -> EndedAtIssuer:
        """Return what a logout token ends.

        Raises:
            LoginError: the issuer is down, or the token is not valid.
        """
        claims = self._signed(logout_token)
        now = int(self._context.now().timestamp())
        check_logout_token(claims, issuer=self.url, client_id=self.client_id, now=now)
        return EndedAtIssuer(claims.get("sub"), claims.get("sid"), int(claims["iat"]))

    def _person(self, claims: Mapping[str, Any], reply: Mapping[str, Any]) -> IssuedPerson:
        endpoint = self.metadata().userinfo_endpoint
        if endpoint is not None:
            info = self._calls.get(endpoint, token=_text_in(reply, "access_token"))
            if info.get("sub") != claims["sub"]:
                raise LoginError(LoginFault.INVALID, "the user info is of another person")
            claims = {**info, **claims}
        given, session = reply.get("refresh_token"), claims.get("sid")
        return IssuedPerson(
            subject=claims["sub"],
            claims=claims,
            groups=groups_in(claims, self._context.settings.oidc_groups_claim),
            refresh_token=given if _is_text(given) else None,
            session=str(session) if is_subject(session, longest=MAX_SESSION) else None,
        )

    def _checked(self, token: str, *, nonce: str | None) -> Mapping[str, Any]:
        claims = self._signed(token)
        check_id_token(
            claims,
            issuer=self.url,
            client_id=self.client_id,
            nonce=nonce,
            now=int(self._context.now().timestamp()),
        )
        return claims

    def _signed(self, token: str) -> dict[str, Any]:
        """Return the claims of a token with a valid signature of the issuer."""
        try:
            header = extract_compact(token.encode()).headers()
        except (JoseError, *MALFORMED) as error:
            raise LoginError(LoginFault.INVALID, f"the token cannot be read: {error!r}") from None
        keys, kid = self._keys.present(self.metadata().jwks_uri), header.get("kid")
        try:
            return decoded(token, _with_id(keys, kid))
        except LoginError:
            newer = self._keys.newer(self.metadata().jwks_uri, keys)
            if newer is keys:
                raise
            return decoded(token, _with_id(newer, kid))

    def _read_metadata(self) -> IssuerMetadata:
        reply = self._calls.get(get_well_known_url(self.url, external=True))
        try:
            found = IssuerMetadata.model_validate(reply)
        except ValidationError as error:
            fields = ", ".join(".".join(map(str, each["loc"])) for each in error.errors())
            raise LoginError(LoginFault.INVALID, f"metadata: {fields} are not valid") from None
        if found.issuer != self.url:
            detail = f"metadata: issuer={found.issuer!r}, not {self.url!r} of TRAINYARD_OIDC_ISSUER"
            raise LoginError(LoginFault.INVALID, detail)
        found.check_endpoints()
        return found

    def _oauth(self) -> OAuth2Client:
        """Return the client for token requests, with an authentication of the issuer."""
        if self._secret is None:
            return self._client(method="none")
        methods = self.metadata().token_endpoint_auth_methods_supported
        if "client_secret_basic" not in methods and "client_secret_post" in methods:
            return self._client(method="client_secret_post", secret=self._secret)
        # Encoded for HTTP Basic (RFC 6749, 2.3.1), which Authlib omits.
        encoded = [quote(each, safe="") for each in (self.client_id, self._secret)]
        return self._client(method="client_secret_basic", client_id=encoded[0], secret=encoded[1])

    def _client(
        self, *, method: str, client_id: str | None = None, secret: str | None = None
    ) -> OAuth2Client:
        return OAuth2Client(
            self._calls,
            client_id=client_id or self.client_id,
            client_secret=secret,
            token_endpoint_auth_method=method,
            scope=self._context.settings.oidc_scopes,
            redirect_uri=self.callback_url,
            code_challenge_method="S256",
        )

    def _now(self) -> float:
        return self._context.clock.monotonic()


def _with_id(keys: Sequence[Key], kid: object) -> KeySet:
    """Return the keys that may have signed a token: all of them if the token names no key."""
    return KeySet([key for key in keys if kid is None or key.kid == kid])


def _text_in(reply: Mapping[str, Any], name: str) -> str:
    found = reply.get(name)
    if not _is_text(found):
        raise LoginError(LoginFault.INVALID, f"the token response has no {name}")
    return str(found)


def _is_text(given: object) -> bool:
    """Return whether a value can be a token: printable ASCII (RFC 6749, A.12 and A.17)."""
    return isinstance(given, str) and given != "" and given.isascii() and given.isprintable()
