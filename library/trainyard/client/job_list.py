"""Calls of the SDK for lists and counts of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainyard.client.transport import QueryValue, Transport
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.jobs import (
    JobCounts,
    JobOrder,
    JobSummary,
    QueueEntry,
    QueuePlace,
    WhatIf,
)
from trainyard.protocol.states import JobState
from trainyard.spec.job import JobSpec


class JobListCalls:
    """Calls of `Client` for lists and counts of jobs."""

    transport: Transport
    """Sends the requests."""

    def jobs(
        self,
        *,
        states: Sequence[JobState | str] = (),
        tags: Sequence[str] = (),
        name: str | None = None,
        project: str | None = None,
        search: str | None = None,
        imported: bool | None = None,
        owner: str | None = None,
        mine: bool = False,
        order: JobOrder | str = JobOrder.NEWEST,
    ) -> Iterator[JobSummary]:
        """Iterate over jobs; pages are fetched on demand.

        Args:
            states: only jobs in one of these states.
            tags: only jobs with all of these tags.
            name: only jobs with exactly this name.
            project: only jobs of this project.
            search: words; each must occur in the name or in a tag, begin the id, or equal a
                `name=value` of the configuration.
            imported: True for imported jobs only, False for jobs that ran here only.
            owner: only jobs of the user of this name.
            mine: only jobs of the caller's user.
            order: `newest` for the newest first, or `active` for running jobs, then waiting jobs,
                then ended jobs.
        """
        query = _filter(
            states,
            tags,
            name=name,
            project=project,
            search=search,
            imported=imported,
            owner=owner,
            mine=mine,
        ) | {"order": str(order)}
        return self.transport.pages(Page[JobSummary], "/jobs", query)

    def job_counts(
        self,
        *,
        states: Sequence[JobState | str] = (),
        tags: Sequence[str] = (),
        name: str | None = None,
        project: str | None = None,
        search: str | None = None,
        imported: bool | None = None,
        owner: str | None = None,
        mine: bool = False,
    ) -> dict[JobState, int]:
        """Return the number of matching jobs by state."""
        query = _filter(
            states,
            tags,
            name=name,
            project=project,
            search=search,
            imported=imported,
            owner=owner,
            mine=mine,
        )
        return self.transport.get(JobCounts, "/jobs/counts", query=query).by_state

    def queue(self) -> Iterator[QueueEntry]:
        """Iterate over waiting jobs in the order of the queue."""
        return self.transport.pages(Page[QueueEntry], "/queue")

    def queue_place(self, job_id: str) -> QueueEntry | None:
        """Return the queue entry of a job; None if the job does not wait."""
        return self.transport.get(QueuePlace, f"/jobs/{job_id}/queue").entry

    def what_if(self, spec: JobSpec | Mapping[str, Any]) -> WhatIf:
        """Predict the start of a job as if it were submitted now; nothing is stored."""
        body = (
            spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, JobSpec) else spec
        )
        return self.transport.post(WhatIf, "/queue/what-if", body)


def _filter(
    states: Sequence[JobState | str],
    tags: Sequence[str],
    *,
    name: str | None,
    project: str | None,
    search: str | None,
    imported: bool | None,
    owner: str | None,
    mine: bool,
) -> dict[str, QueryValue | None]:
    return {
        "state": list(states),
        "tag": list(tags),
        "name": name,
        "project": project,
        "search": search,
        "owner": owner,
        "mine": "true" if mine else None,
        "imported": None if imported is None else str(imported).lower(),
    }
