"""Comparison of jobs: the values of configuration and summary that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select

from server.api.http.query import compared_jobs
from server.core.context import Context
from server.core.database.tables import jobs
from server.core.errors import NotFoundError
from server.core.visibility.scope import Scope
from server.jobs.facts.store import read_facts
from trainyard.protocol.rest.metrics_and_logs import FactOwner, FactRow, FactsComparison
from trainyard.run.fact_types.fact_records import FactValue, RunFacts


def compare_facts(context: Context, job_ids: Sequence[str], *, scope: Scope) -> FactsComparison:
    """Return the values that differ between jobs, in the order of their first appearance.

    Raises:
        NotFoundError: some ids belong to no visible job; the error names all such ids.
        InvalidRequestError: there is no job, or there are too many jobs.
    """
    wanted = compared_jobs(job_ids)
    with context.database.read() as connection:
        visible = jobs.c.id.in_(wanted), scope.filter(jobs.c.project)
        query = select(jobs.c.id, jobs.c.name).where(*visible)
        names = {row.id: row.name for row in connection.execute(query)}
        if unknown := [job_id for job_id in wanted if job_id not in names]:
            raise NotFoundError.of_jobs(unknown)
        found = read_facts(connection, wanted)
    facts = [found.get(job_id, RunFacts()) for job_id in wanted]
    config, same = _differing([each.config for each in facts])
    summary, equal = _differing([each.summary for each in facts])
    return FactsComparison(
        jobs=tuple(FactOwner(id=job_id, name=names[job_id]) for job_id in wanted),
        config=config,
        summary=summary,
        same=same + equal,
    )


def _differing(sections: Sequence[Mapping[str, FactValue]]) -> tuple[tuple[FactRow, ...], int]:
    """Return the rows with different values in the sections, and the number of all other rows."""
    names = dict.fromkeys(name for section in sections for name in section)
    rows = [FactRow(name=name, values=tuple(each.get(name) for each in sections)) for name in names]
    # `True` and 1 are equal in Python, but differ here.
    differing = tuple(
        row for row in rows if len({(isinstance(each, bool), each) for each in row.values}) > 1
    )
    return differing, len(rows) - len(differing)
