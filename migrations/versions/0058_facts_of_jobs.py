"""Facts of jobs: configuration and summary, and words by which a search finds values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None

ROWS_AT_ONCE = 200
MAX_FACTS, MAX_BYTES, LONGEST_TEXT = 1000, 32 * 1024, 1000
MAX_WORDS, LONGEST_WORD = 200, 200

jobs = sa.table("jobs", *map(sa.column, ("id", "spec")))
imports = sa.table("imports", *map(sa.column, ("job_id", "run")))
job_facts = sa.table("job_facts", *map(sa.column, ("job_id", "facts")))
config_words = sa.table("config_words", *map(sa.column, ("word", "job_id")))


def upgrade() -> None:
    """Add the tables; stored programs and imported runs have their arguments and summaries."""
    for name, column in (("job_facts", "facts"), ("config_words", "word")):
        job = sa.Column("job_id", sa.String(length=26), nullable=False)
        key = ["job_id"]
        columns = [job, sa.Column(column, sa.Text(), nullable=False)]
        if column == "word":
            columns = [sa.Column(column, sa.String(length=200), nullable=False), job]
            key = ["word", "job_id"]
        op.create_table(
            name,
            *columns,
            sa.ForeignKeyConstraint(
                ["job_id"], ["jobs.id"], name=f"fk_{name}_job_id_jobs", ondelete="CASCADE"
            ),
            sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"),
        )
    op.create_index("ix_config_words_job_id", "config_words", ["job_id"])
    _fill()


def downgrade() -> None:
    """Drop them, and the notices of a kind that the former version lacks."""
    op.execute("DELETE FROM notices WHERE kind = 'facts'")
    op.drop_table("config_words")
    op.drop_table("job_facts")


def _fill() -> None:
    connection = op.get_bind()
    joined = jobs.outerjoin(imports, imports.c.job_id == jobs.c.id)
    with_program = jobs.c.spec.like('%"program":{%')
    page = sa.select(jobs.c.id, jobs.c.spec, imports.c.run).select_from(joined)
    page = page.where(with_program).order_by(jobs.c.id).limit(ROWS_AT_ONCE)
    rows = connection.execute(page).all()
    while rows:
        for job_id, spec, run in rows:
            program = json.loads(spec).get("program") or {}
            summary = {} if run is None else json.loads(run).get("summary") or {}
            config = dict(_facts((program.get("arguments") or {}).items()))
            facts = {"config": config, "summary": dict(_facts(summary.items())), "tags": []}
            if config or facts["summary"]:
                text = json.dumps(facts, ensure_ascii=False)
                connection.execute(sa.insert(job_facts).values(job_id=job_id, facts=text))
            words = sorted(set(list(filter(None, map(_word, config, config.values())))[:MAX_WORDS]))
            if words:
                rows_of = [{"word": word, "job_id": job_id} for word in words]
                connection.execute(sa.insert(config_words), rows_of)
        rows = connection.execute(page.where(jobs.c.id > rows[-1].id)).all()


def _facts(values: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    size = 0
    for name, value in islice(values, MAX_FACTS):
        fact = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
        if isinstance(fact, int) and abs(fact) > 2**53:
            fact = str(fact)
        if isinstance(fact, str):
            fact = fact if len(fact) <= LONGEST_TEXT else f"{fact[: LONGEST_TEXT - 3]}..."
        size += len(json.dumps((name, fact), ensure_ascii=False).encode())
        if size > MAX_BYTES:
            return
        yield name, fact


def _word(name: str, value: Any) -> str | None:
    text = str(value).lower()
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        exact = abs(number) <= 2**53 or not text.lstrip("+-").isdigit()
        text = repr(number) if math.isfinite(number) and exact else text
    word = f"{name.lower()}={text}"
    return word if len(word) <= LONGEST_WORD and word.split() == [word] else None
