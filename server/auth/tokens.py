"""Secrets and their hashes: a token is 256 random bits, of which only the SHA-256 is stored."""

from __future__ import annotations

import hashlib
import secrets
from enum import StrEnum


class TokenKind(StrEnum):
    """What a token is for; its text begins with `ty_<kind>_`."""

    ADMIN = "admin"
    """A person who may also make tokens."""
    API = "api"
    """A person or a program."""
    JOIN = "join"
    """One registration of a new node."""
    LOGIN = "login"
    """One browser login."""
    NODE = "node"
    """The worker of one node."""
    ATTEMPT = "attempt"
    """Reports of one attempt on one node; its hash stands on the attempt-node."""


def make_token(kind: TokenKind) -> str:
    """Return a new token, such as `ty_api_...`."""
    return f"ty_{kind}_{make_secret()}"


def make_secret() -> str:
    """Return 256 random bits as text that is safe in a URL and a cookie."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return what is stored of a token: its SHA-256 in hexadecimal.

    A plain hash is enough for a secret of 256 random bits; there is nothing to guess.
    """
    return hashlib.sha256(token.encode()).hexdigest()
