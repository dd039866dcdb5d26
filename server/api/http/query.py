"""Query parameters: a check for unknown ones, and parameters that several endpoints share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from fastapi import Depends, Query, Request
from fastapi.dependencies.models import Dependant

from server.core.errors import InvalidRequestError
from trainyard.base.ids import ID_PATTERN
from trainyard.base.problems import Problem
from trainyard.protocol.rest.metrics_and_logs import MAX_COMPARED

ID = ID_PATTERN.strip("^$")


async def _check(request: Request) -> None:
    if not request.query_params:
        return
    legal = tuple(dict.fromkeys(_names(request.scope["route"].dependant)))
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in legal]
    if unknown:
        shown = f"legal: {', '.join(legal)}" if legal else "none is taken here"
        raise InvalidRequestError.of(
            Problem(pointer=f"query/{name[:80]}", detail=f"unknown parameter; {shown}")
            for name in unknown
        )


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for dependency in dependant.dependencies:
        yield from _names(dependency)


no_unknown_query = Depends(_check)
"""Refuses requests with unknown query parameters (422); the error lists the known ones."""

AttemptNumber = Annotated[int | None, Query(ge=1, le=10**6, description="Number of an attempt.")]
ComparedJobs = Annotated[
    str,
    Query(
        pattern=rf"^{ID}(,{ID})*$",
        json_schema_extra={"pattern": rf"^{ID}(,{ID}){{0,{MAX_COMPARED - 1}}}$"},
        description=f"Ids of jobs, separated by commas; at most {MAX_COMPARED}.",
        examples=["01jd3m6y0000000000000000a7,01jd3m8b0000000000000000c3"],
    ),
]


def compared_jobs(job_ids: Sequence[str]) -> list[str]:
    """Return the ids of the jobs to compare, each once, or raise `InvalidRequestError`.

    A comparison has 1 to `MAX_COMPARED` jobs.
    """
    if not 1 <= len(job_ids) <= MAX_COMPARED:
        detail = f"{len(job_ids)} jobs; legal: 1 to {MAX_COMPARED}"
        raise InvalidRequestError.at("query/jobs", detail)
    return list(dict.fromkeys(job_ids))
