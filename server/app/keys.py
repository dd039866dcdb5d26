"""Encryption keys for stored values: creation at the first start, validation and rotation."""

from __future__ import annotations

from sqlalchemy import Connection, select, text, update

from server.core.context import Context
from server.core.database.tables import jobs
from server.core.people.identity_tables import REFRESH_TOKEN, identities
from server.core.secrets import KeyFileError

BATCH = 500


def ensure_key(context: Context) -> str | None:
    """Create the first key if nothing is encrypted yet; return the error of an unusable key file,
    else None.

    A lost key file is not replaced, because a new key cannot decrypt the stored values.
    """
    query = select(jobs.c.env).where(jobs.c.env.is_not(None)).order_by(jobs.c.id.desc()).limit(1)
    with context.database.read() as connection:
        stored = connection.scalar(query)
    if stored is None:
        context.secrets.create()
    try:
        context.secrets.open(stored)
        context.secrets.seal({"": ""})
    except KeyFileError as error:
        return error.detail
    return None


def rotate(context: Context) -> int:
    """Encrypt every stored environment with a new key, and return the number of environments.

    The former key stays in the file until the next rotation, for values that another process
    encrypts during this rotation.

    Raises:
        KeyFileError: the key file is missing, or none of its keys decrypts a value. The stored
            values are unchanged.
    """
    secrets = context.secrets
    secrets.add_key()
    count = 0
    with context.database.write() as connection:
        if not context.database.is_sqlite:  # SQLite has only one writer, so it needs no lock
            connection.execute(text("LOCK TABLE jobs IN SHARE ROW EXCLUSIVE MODE"))
        query = select(jobs.c.id, jobs.c.env).where(jobs.c.env.is_not(None)).order_by(jobs.c.id)
        after = ""
        while rows := connection.execute(query.where(jobs.c.id > after).limit(BATCH)).all():
            for row in rows:
                sealed = secrets.rotate(row.env)
                connection.execute(update(jobs).where(jobs.c.id == row.id).values(env=sealed))
            count, after = count + len(rows), rows[-1].id
        _rotate_refresh_tokens(context, connection)
    secrets.forget_old_keys()
    return count


def _rotate_refresh_tokens(context: Context, connection: Connection) -> None:
    """Encrypt the refresh tokens of the issuer anew; one that no key decrypts stays, unusable."""
    its, secrets = identities.c, context.secrets
    query = select(its.user_id, its.refresh_token).where(its.refresh_token.is_not(None))
    query, after = query.order_by(its.user_id).with_for_update(), ""
    while rows := connection.execute(query.where(its.user_id > after).limit(BATCH)).all():
        for row in rows:
            token = secrets.open_text(row.refresh_token, purpose=REFRESH_TOKEN)
            if token is not None:
                sealed = secrets.seal_text(token, purpose=REFRESH_TOKEN)
                one = update(identities).where(its.user_id == row.user_id)
                connection.execute(one.values(refresh_token=sealed))
        after = rows[-1].user_id
