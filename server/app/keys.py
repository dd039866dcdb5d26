"""Encryption keys for stored values: creation at the first start, validation and rotation."""

from __future__ import annotations

from sqlalchemy import Connection, select, text, tuple_, update

from server.core.audit.request_rows import append_rows, command_row
from server.core.audit.signed_digests import sign_again
from server.core.context import Context
from server.core.database.tables import jobs
from server.core.people.identity_tables import REFRESH_TOKEN, identities
from server.core.people.secret_tables import secret_versions
from server.core.secrets import KeyFileError

BATCH = 500


def ensure_key(context: Context) -> str | None:
    """Create the first key if nothing is encrypted yet; return the error of an unusable key file,
    else None.

    A lost key file is not replaced, because a new key cannot decrypt the stored values.
    """
    query = select(jobs.c.env).where(jobs.c.env.is_not(None)).order_by(jobs.c.id.desc()).limit(1)
    of_secret = select(secret_versions.c.ciphertext).limit(1)
    with context.database.read() as connection:
        stored, ciphertext = connection.scalar(query), connection.scalar(of_secret)
    if stored is None and ciphertext is None:
        context.secrets.create()
    try:
        context.secrets.open(stored)
        if ciphertext is not None:
            context.secrets.rotate_text(ciphertext, "a secret")
        context.secrets.seal({"": ""})
    except KeyFileError as error:
        return error.detail
    return None


def rotate(context: Context) -> int:
    """Encrypt every stored environment and secret with a new key; return the number of both.

    The former key stays in the file until the next rotation, for values that another process
    encrypts during this rotation.

    Raises:
        KeyFileError: the key file is missing, or none of its keys decrypts a value. The stored
            values are unchanged.
    """
    secrets = context.secrets
    # With the key that servers on other machines have, too, until they get a copy of the file.
    with context.database.write() as connection:
        sign_again(context, connection)
    secrets.add_key()
    count = 0
    with context.database.write() as connection:
        if not context.database.is_sqlite:  # SQLite has only one writer, so it needs no lock
            mode = "IN SHARE ROW EXCLUSIVE MODE"
            connection.execute(text(f"LOCK TABLE jobs, secret_versions {mode}"))
        query = select(jobs.c.id, jobs.c.env).where(jobs.c.env.is_not(None)).order_by(jobs.c.id)
        after = ""
        while rows := connection.execute(query.where(jobs.c.id > after).limit(BATCH)).all():
            for row in rows:
                sealed = secrets.rotate(row.env)
                connection.execute(update(jobs).where(jobs.c.id == row.id).values(env=sealed))
            count, after = count + len(rows), rows[-1].id
        _rotate_refresh_tokens(context, connection)
        count += _rotate_secrets(context, connection)
        append_rows(connection, [command_row(context, "key_rotated", object="keys")])
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


def _rotate_secrets(context: Context, connection: Connection) -> int:
    key = (secret_versions.c.secret_id, secret_versions.c.version)
    query, count, after = select(secret_versions).order_by(*key), 0, ("", 0)
    while rows := connection.execute(query.where(tuple_(*key) > after).limit(BATCH)).all():
        for row in rows:
            sealed = context.secrets.rotate_text(row.ciphertext, f"secret {row.secret_id}")
            its = (key[0] == row.secret_id) & (key[1] == row.version)
            connection.execute(update(secret_versions).where(its).values(ciphertext=sealed))
        count, after = count + len(rows), (rows[-1].secret_id, rows[-1].version)
    return count
