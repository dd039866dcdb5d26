"""Facts of jobs, stored as one record per job, and the search words of each configuration.

A job that runs a program has the facts that its script reported last. Before the first report, its
facts are the arguments in its spec. An imported run has the facts that the other tool recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from sqlalchemy import Connection, delete, insert, select, update

from server.core.database.metric_and_log_tables import config_words, job_facts
from server.core.database.tables import jobs
from server.core.database.upsert import insert_or_replace
from trainyard.base.names import MAX_TAGS
from trainyard.protocol.past_runs.views import ImportedRun
from trainyard.run.fact_types.fact_records import EXACT, FactValue, RunFacts
from trainyard.run.fact_types.fact_section import facts_of, legal_tags
from trainyard.spec.job import JobSpec

MAX_WORDS = 200
"""Maximum number of searchable values of a configuration; later values cannot be found."""
LONGEST_WORD = 200


def begin_facts(
    connection: Connection, specs: Mapping[str, JobSpec], run: ImportedRun | None = None
) -> None:
    """Store the first facts of new jobs.

    `specs` has the specs of the jobs by job id. `run` is the imported run that `specs` describes;
    None for submitted jobs.
    """
    summary = {} if run is None else facts_of(run.summary)
    rows: list[dict[str, object]] = []
    words: list[dict[str, str]] = []
    for job_id, spec in specs.items():
        config = {} if spec.program is None else facts_of(spec.program.arguments)
        if config or summary:
            rows.append({"job_id": job_id, "facts": RunFacts(config=config, summary=summary)})
            words += _words_of(job_id, _words(config))
    for table, values in ((job_facts, rows), (config_words, words)):
        if values:
            connection.execute(insert(table), values)


def report_facts(connection: Connection, job_id: str, facts: RunFacts) -> None:
    """Replace the facts of a job with the facts that its script reported.

    The transaction holds the lock of the job. The job gets each tag once, so a tag that a person
    removed is not added again. Tags beyond `MAX_TAGS` are dropped.
    """
    before = read_facts(connection, [job_id]).get(job_id, RunFacts())
    tags = legal_tags((*before.tags, *facts.tags))
    row = {"job_id": job_id, "facts": replace(facts, tags=tags)}
    insert_or_replace(connection, job_facts, [row])
    _replace_words(connection, job_id, _words(facts.config))
    if new := [tag for tag in tags if tag not in before.tags]:
        own = connection.scalar(select(jobs.c.tags).where(jobs.c.id == job_id)) or []
        all_tags = [*islice(dict.fromkeys((*own, *new)), max(MAX_TAGS, len(own)))]
        if all_tags != own:
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(tags=all_tags))


def read_facts(connection: Connection, job_ids: Sequence[str]) -> dict[str, RunFacts]:
    """Return facts by job id; jobs without facts are omitted."""
    query = select(job_facts.c.job_id, job_facts.c.facts).where(job_facts.c.job_id.in_(job_ids))
    return {row.job_id: row.facts for row in connection.execute(query)}


def config_word(name: str, value: FactValue) -> str | None:
    """Return the search word of a value, such as `lr=0.0003`; None if the value cannot be searched.

    A value cannot be searched if its word would be too long or have spaces.

    The word ignores case, and all spellings of a number have the same word. Whole numbers without
    an exact representation as a float keep their spelling, because such numbers may be ids.
    """
    text = str(value).lower()
    with suppress(ValueError):
        number = float(text)
        exact = abs(number) <= EXACT or not text.lstrip("+-").isdigit()
        text = repr(number) if math.isfinite(number) and exact else text
    word = f"{name.lower()}={text}"
    return word if len(word) <= LONGEST_WORD and word.split() == [word] else None


def _replace_words(connection: Connection, job_id: str, new: set[str]) -> None:
    own = config_words.c.job_id == job_id
    old = set(connection.scalars(select(config_words.c.word).where(own)))
    if gone := old - new:
        connection.execute(delete(config_words).where(own, config_words.c.word.in_(gone)))
    if added := new - old:
        connection.execute(insert(config_words), _words_of(job_id, added))


def _words(config: Mapping[str, FactValue]) -> set[str]:
    words = (config_word(name, value) for name, value in config.items())
    return {*islice((word for word in words if word is not None), MAX_WORDS)}


def _words_of(job_id: str, words: set[str]) -> list[dict[str, str]]:
    return [{"word": word, "job_id": job_id} for word in sorted(words)]
