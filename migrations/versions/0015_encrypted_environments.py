"""Values of `env` are encrypted and stored apart from the spec; digests omit them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import context, op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

JOBS = sa.table("jobs", *map(sa.column, ("id", "spec", "spec_digest", "env")))
CHORES = sa.table("chores", *map(sa.column, ("id", "task")))
KEYS = sa.table("idempotency_keys", *map(sa.column, ("job_id", "request_digest")))


def upgrade() -> None:
    """Move each environment out of its spec."""
    op.add_column("jobs", sa.Column("env", sa.Text()))
    connection = op.get_bind()
    for job_id, text, old_digest in connection.execute(
        sa.select(JOBS.c.id, JOBS.c.spec, JOBS.c.spec_digest)
    ).all():
        spec = json.loads(text)
        env = spec.pop("env", None)
        if env:
            _encrypt(connection, job_id, spec, env, old_digest)
    for chore_id, text in connection.execute(sa.select(CHORES.c.id, CHORES.c.task)).all():
        task = json.loads(text)
        if ((task.get("sample") or {}).get("spec") or {}).pop("env", None):
            connection.execute(
                sa.update(CHORES).where(CHORES.c.id == chore_id).values(task=json.dumps(task))
            )


def downgrade() -> None:
    """Put each environment back into its spec, in the clear."""
    connection = op.get_bind()
    rows = connection.execute(sa.select(JOBS.c.id, JOBS.c.spec, JOBS.c.env)).all()
    for job_id, text, sealed in rows:
        if sealed:
            env = _secrets().open(json.loads(sealed))
            spec = json.dumps({**json.loads(text), "env": env})
            connection.execute(sa.update(JOBS).where(JOBS.c.id == job_id).values(spec=spec))
    op.drop_column("jobs", "env")


def _encrypt(
    connection: sa.Connection, job_id: str, spec: dict[str, Any], env: Any, old_digest: str
) -> None:
    # The digest of a stored spec cannot be computed without its parser, which goes on changing;
    # it has to be another one, without secrets, and the same for the same spec.
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    values = {
        "spec": json.dumps(spec),
        "spec_digest": digest,
        "env": json.dumps(_secrets().seal(env)),
    }
    connection.execute(sa.update(JOBS).where(JOBS.c.id == job_id).values(**values))
    connection.execute(
        sa.update(KEYS)
        .where(KEYS.c.job_id == job_id, KEYS.c.request_digest == old_digest)
        .values(request_digest=digest)
    )


def _secrets() -> Any:
    secrets = context.config.attributes.get("secrets")
    if secrets is None:
        raise RuntimeError("jobs with env are stored: run `python -m server migrate`")
    secrets.create()
    return secrets
