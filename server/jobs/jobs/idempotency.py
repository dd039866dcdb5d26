"""Repeated submissions: the same key and the same request return the same job."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy import Connection

from server.core.context import Context
from server.core.database.tables import idempotency_keys, jobs
from server.core.database.upsert import insert_absent
from server.core.errors import InvalidRequestError
from server.core.subject import Actor
from trainyard.spec.environment import Environment
from trainyard.spec.job import DEFAULT_PROJECT, JobSpec

KEYS_KEPT = timedelta(days=7)
"""Time for which a repeat with the same `Idempotency-Key` returns the first job."""


def submission_digest(spec: JobSpec) -> str:
    """Return a SHA-256 of project and spec, because the digest of a spec omits the project."""
    if spec.project == DEFAULT_PROJECT:  # as older versions stored it
        return spec.digest
    return hashlib.sha256(f"{spec.project} {spec.digest}".encode()).hexdigest()


def job_of_key(
    context: Context,
    connection: Connection,
    actor: Actor,
    *,
    key: str,
    digest: str,
    same_env: Callable[[Environment], bool],
    job_id: str,
) -> str | None:
    """Reserve the key for `job_id` and return None, or return the id of the key's earlier job.

    `digest` leaves out the values of `env`, because these values could be guessed from a stored
    digest. Instead, `same_env` compares the environment of the earlier job with the requested
    environment.

    Raises:
        InvalidRequestError: the key was used for another request.
    """
    row = {
        "actor": actor.identity,
        "key": key,
        "request_digest": digest,
        "job_id": job_id,
        "created_at": context.now(),
    }
    keys = idempotency_keys
    if insert_absent(connection, keys, [row]):
        return None
    earlier = connection.execute(
        sa.select(keys.c.request_digest, keys.c.job_id, jobs.c.env)
        .join(jobs, jobs.c.id == keys.c.job_id)
        .where(keys.c.actor == row["actor"], keys.c.key == key)
    ).one()
    if earlier.request_digest != digest or not same_env(context.secrets.open(earlier.env)):
        raise InvalidRequestError.at(
            "header/Idempotency-Key", "was used before with another body; take a new one"
        )
    return str(earlier.job_id)


def forget_old_keys(context: Context) -> int:
    """Delete expired idempotency keys, and return their number."""
    expired = idempotency_keys.c.created_at < context.now() - KEYS_KEPT
    with context.database.write() as connection:
        return connection.execute(sa.delete(idempotency_keys).where(expired)).rowcount
