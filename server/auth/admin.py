"""The admin token: created at the first start, written to one file, stored as its hash."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import IntegrityError

from server.auth.tokens import TokenKind, hash_token, make_token
from server.context import Context
from server.database.tables import tokens
from trainyard.base.ids import make_id
from trainyard.run.atomic import create_file

ADMIN_ID = make_id(milliseconds=0, entropy=bytes(10))
"""Fixed id of the one admin token: of several first starts, the primary key lets one insert it."""


def ensure_admin_token(context: Context) -> Path | None:
    """Create the admin token if there is none, and return the file that holds it.

    Processes that start together agree: the second one on a machine reads the file of the first,
    and one on another machine removes its own file again.

    Returns:
        None where the token existed, or where another machine has the file.
    """
    if _stored_hash(context) is not None:
        return None
    path = context.settings.state_dir / "admin.token"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    create_file(path, make_token(TokenKind.ADMIN) + "\n", mode=0o600)
    token = path.read_text(encoding="utf-8").strip()
    try:
        with context.database.write() as connection:
            connection.execute(insert(tokens).values(_row(context, token)))
    except IntegrityError:
        if _stored_hash(context) != hash_token(token):
            path.unlink(missing_ok=True)
            return None
    return path


def replace_admin_token(context: Context) -> str:
    """Return a new admin token; the former one and its sessions end."""
    token = make_token(TokenKind.ADMIN)
    with context.database.write() as connection:
        connection.execute(delete(tokens).where(tokens.c.id == ADMIN_ID))
        connection.execute(insert(tokens).values(_row(context, token)))
    return token


def _stored_hash(context: Context) -> str | None:
    with context.database.read() as connection:
        return connection.scalar(select(tokens.c.hash).where(tokens.c.id == ADMIN_ID))


def _row(context: Context, token: str) -> dict[str, object]:
    return {
        "id": ADMIN_ID,
        "name": "admin",
        "kind": TokenKind.ADMIN,
        "hash": hash_token(token),
        "created_at": context.now(),
    }
