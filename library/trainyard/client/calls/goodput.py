"""Calls of the SDK for goodput of jobs and the cluster, save intervals, and advice."""

from __future__ import annotations

from datetime import date

from trainyard.client.transport import QueryValue, Transport
from trainyard.protocol.goodput import (
    AdviceView,
    CalibrationsView,
    ClusterGoodputView,
    GoodputView,
    SaveIntervalWhatIf,
)


class GoodputCalls:
    """Calls of `Client` for goodput."""

    transport: Transport
    """Sends the requests."""

    def goodput(self, job_id: str) -> GoodputView:
        """Return the wall time of a job by category."""
        return self.transport.get(GoodputView, f"/jobs/{job_id}/goodput")

    def calibrations(self) -> CalibrationsView:
        """Return the calibration of each kind of hardware, with the errors of the predictions."""
        return self.transport.get(CalibrationsView, "/calibrations")

    def advice(self, job_id: str) -> AdviceView:
        """Return findings on what slows a job, the costliest first."""
        return self.transport.get(AdviceView, f"/jobs/{job_id}/advice")

    def save_interval_what_if(self, job_id: str, interval_steps: int) -> SaveIntervalWhatIf:
        """Replay the records of a job with another number of steps between two saves."""
        path = f"/jobs/{job_id}/goodput/what-if"
        return self.transport.get(
            SaveIntervalWhatIf, path, query={"interval_steps": interval_steps}
        )

    def cluster_goodput(
        self,
        *,
        first: date | None = None,
        last: date | None = None,
        project: str | None = None,
    ) -> ClusterGoodputView:
        """Return the slot-time of the cluster by category.

        Args:
            first: first day, in UTC; by default 29 days before `last`.
            last: last day, in UTC, included; by default today.
            project: only slots that this project's jobs held.
        """
        query: dict[str, QueryValue | None] = {
            "from": None if first is None else first.isoformat(),
            "to": None if last is None else last.isoformat(),
            "project": project,
        }
        return self.transport.get(ClusterGoodputView, "/goodput", query=query)
