"""The SDK's calls about many jobs: lists and counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainyard.client.transport import QueryValue, Transport
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.jobs import JobCounts, JobOrder, JobSummary
from trainyard.protocol.states import JobState


class JobListCalls:
    """Calls of `Client` about many jobs at once."""

    transport: Transport
    """Sends the requests."""

    def jobs(
        self,
        *,
        states: Sequence[JobState | str] = (),
        tags: Sequence[str] = (),
        name: str | None = None,
        search: str | None = None,
        order: JobOrder | str = JobOrder.NEWEST,
    ) -> Iterator[JobSummary]:
        """Iterate over jobs; pages are fetched as they are needed.

        Args:
            states: in one of these states.
            tags: with all of these tags.
            name: with exactly this name.
            search: with this text in the name, or an id that begins with it.
            order: the newest first, or those that have not ended (`active`) before the others.
        """
        query = _filter(states, tags, name, search) | {"order": str(order)}
        return self.transport.pages(Page[JobSummary], "/jobs", query)

    def job_counts(
        self,
        *,
        states: Sequence[JobState | str] = (),
        tags: Sequence[str] = (),
        name: str | None = None,
        search: str | None = None,
    ) -> dict[JobState, int]:
        """Return how many jobs that match are in each state."""
        query = _filter(states, tags, name, search)
        return self.transport.get(JobCounts, "/jobs/counts", query=query).by_state


def _filter(
    states: Sequence[JobState | str], tags: Sequence[str], name: str | None, search: str | None
) -> dict[str, QueryValue | None]:
    return {"state": list(states), "tag": list(tags), "name": name, "search": search}
