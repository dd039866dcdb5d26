"""Secrets and their hashes: a token is 256 random bits; only its SHA-256 is stored."""

from __future__ import annotations

import hashlib
import secrets
from enum import StrEnum


class TokenKind(StrEnum):
    """Purpose of a token; its text begins with `ty_<kind>_`."""

    ADMIN = "admin"
    """A person who may also make tokens."""
    API = "api"
    """A person or a program."""
    JOIN = "join"
    """One registration of a new node or source."""
    LOGIN = "login"
    """One browser login."""
    NODE = "node"
    """The worker of one node."""
    SOURCE = "source"
    """The provisioner of one source of nodes."""
    ATTEMPT = "attempt"
    """Reports of one attempt on one node; `attempt_nodes` has its hash."""


def make_token(kind: TokenKind, secret: str | None = None) -> str:
    """Return a token such as `ty_api_...`, made of `secret` or of a new one."""
    return f"ty_{kind}_{secret or make_secret()}"


def make_secret() -> str:
    """Return 256 random bits as text that is safe in a URL and a cookie."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal, which is stored instead of the token.

    A fast hash without salt suffices: 256 random bits cannot be guessed.
    """
    return hashlib.sha256(token.encode()).hexdigest()
