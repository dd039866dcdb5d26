"""Secrets and their hashes: a token is 256 random bits; only its SHA-256 is stored."""

from __future__ import annotations

import hashlib
import secrets
from enum import StrEnum


class TokenKind(StrEnum):
    """Purpose of a token; the text of the token begins with `ty_<kind>_`."""

    ADMIN = "admin"
    """For a person who may also create tokens."""
    API = "api"
    """For a person or a program."""
    JOIN = "join"
    """For one registration of a new node or source."""
    LOGIN = "login"
    """For one login of a browser."""
    NODE = "node"
    """For the worker of one node."""
    SOURCE = "source"
    """For the provisioner of one source of nodes."""
    ATTEMPT = "attempt"
    """For the reports of one attempt on one node; `attempt_nodes` stores the token's hash."""


def make_token(kind: TokenKind, secret: str | None = None) -> str:
    """Return a token such as `ty_api_...`, made from `secret` or from a new random secret."""
    return f"ty_{kind}_{secret or make_secret()}"


def make_secret() -> str:
    """Return 256 random bits as text that is safe in a URL and a cookie."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal; 256 random bits need no salt or slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()
