"""Calls of the SDK for requests to the trainer of a running job."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.client.errors import UnknownReferenceError
from trainyard.client.transport import Transport
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.jobs import JobRequest, JobRequestView
from trainyard.run.records import RecordingRanks, RequestKind


class RequestCalls:
    """Calls of `Client` for requests to a running job."""

    transport: Transport
    """Sends the requests."""

    def request(
        self, job_id: str, kind: RequestKind, *, steps: int = 3, ranks: RecordingRanks = "first"
    ) -> JobRequestView:
        """Send a request to a running job, for example a save; an event contains the answer."""
        body = JobRequest(kind=kind, steps=steps, ranks=ranks)
        return self.transport.post(JobRequestView, f"/jobs/{job_id}/requests", body)

    def requests(self, job_id: str) -> Iterator[JobRequestView]:
        """Iterate over the requests to a job with their answers, the newest first."""
        return self.transport.pages(Page[JobRequestView], f"/jobs/{job_id}/requests")

    def wait_for_answer(
        self,
        job_id: str,
        request_id: str,
        *,
        timeout: float | None = None,
        poll_seconds: float = 0.5,
    ) -> JobRequestView:
        """Return a request once it is answered, at the latest when the attempt ends.

        Raises:
            TimeoutError: the request was not answered within `timeout` seconds.
            UnknownReferenceError: the job has no such request.
        """
        return self.transport.poll(
            lambda: self._request(job_id, request_id),
            lambda view: view.answer is not None,
            waiting="{0.request.kind} is not answered",
            timeout=timeout,
            poll_seconds=poll_seconds,
        )

    def _request(self, job_id: str, request_id: str) -> JobRequestView:
        if found := next((one for one in self.requests(job_id) if one.id == request_id), None):
            return found
        raise UnknownReferenceError(f"job {job_id} has no request {request_id}")
