"""The SDK's calls about goodput: of a job, of the cluster, with other saves, and advice."""

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
    """Calls of `Client` about goodput."""

    transport: Transport
    """Sends the requests."""

    def goodput(self, job_id: str) -> GoodputView:
        """Return the wall time of a job by category."""
        return self.transport.get(GoodputView, f"/jobs/{job_id}/goodput")

    def calibrations(self) -> CalibrationsView:
        """Return what finished runs taught of each kind of hardware, with the errors."""
        return self.transport.get(CalibrationsView, "/calibrations")

    def advice(self, job_id: str) -> AdviceView:
        """Return what slows a job by its own records, the costliest finding first."""
        return self.transport.get(AdviceView, f"/jobs/{job_id}/advice")

    def save_interval_what_if(self, job_id: str, interval_steps: int) -> SaveIntervalWhatIf:
        """Return what the records of a job show for another number of steps between two saves."""
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
            first: first day, in UTC; 29 days before the last when absent.
            last: last day, in UTC, included; today when absent.
            project: only the slots that its jobs held.
        """
        query: dict[str, QueryValue | None] = {
            "from": None if first is None else first.isoformat(),
            "to": None if last is None else last.isoformat(),
            "project": project,
        }
        return self.transport.get(ClusterGoodputView, "/goodput", query=query)
