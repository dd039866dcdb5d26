"""Measures how many healthy jobs end because of transient errors of requests to the API."""

from __future__ import annotations

from tests.chaos.case import Case
from tests.chaos.cluster import Cluster
from tests.chaos.proxies import failing_requests
from tests.e2e.control_plane import finished

JOBS_AT_ONCE = 3
EVERY = 2
"""Every second request of the nodes fails."""


def measure(cluster: Cluster, *, errors: int) -> dict[str, int | float]:
    """Run jobs one after another until so many requests have failed, and count what became of them.

    A job is healthy: nothing but its requests fails. It ends because of them if it does not succeed
    in its first attempt.
    """
    jobs = ended = 0
    with failing_requests(cluster, every=EVERY) as failed:
        while failed.met < errors:
            cases = [Case.submitted(cluster, f"healthy-{n}") for n in range(JOBS_AT_ONCE)]
            for case in cases:
                job = finished(cluster.yard, case.job_id)
                jobs += 1
                ended += (job.state, job.attempt) != ("succeeded", 1)
    per_thousand = round(1000 * ended / failed.met, 2)
    return {"errors": failed.met, "jobs": jobs, "ended": ended, "ended_per_1000": per_thousand}
