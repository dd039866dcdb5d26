"""Calls of the SDK for imports of runs of other tools."""

from __future__ import annotations

from trainyard.client.transport import Transport
from trainyard.protocol.past_runs.views import ImportedPoints, ImportRequest, ImportView


class ImportCalls:
    """Calls of `Client` for imports; each call may be repeated."""

    transport: Transport
    """Sends the requests."""

    def start_import(self, request: ImportRequest) -> ImportView:
        """Store a run without its points; content with the same digest is stored once.

        Raises:
            InvalidRequestError: the run's project does not exist.
        """
        headers = {"Idempotency-Key": request.run.digest}
        return self.transport.post(ImportView, "/imports", request, headers=headers)

    def add_points(self, job_id: str, batch: ImportedPoints) -> ImportView:
        """Store the next points of an import; points already stored are ignored.

        Raises:
            ConflictError: earlier points are missing.
        """
        headers = {"Idempotency-Key": str(batch.start)}
        path = f"/imports/{job_id}/points"
        return self.transport.post(ImportView, path, batch, headers=headers)
