"""Calls of the SDK for node sources and requests for nodes."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.client.transport import Transport
from trainyard.protocol.node_sources.views import (
    NodeRequestView,
    NodesRequest,
    SourceOrder,
    SourceView,
)
from trainyard.protocol.rest.common import Page


class SourceCalls:
    """Calls of `Client` for node sources."""

    transport: Transport
    """Sends the requests."""

    def sources(self) -> Iterator[SourceView]:
        """Iterate over the sources in the order of their names."""
        return self.transport.pages(Page[SourceView], "/sources")

    def source(self, name: str) -> SourceView:
        """Return one source."""
        return self.transport.get(SourceView, f"/sources/{name}")

    def pause_source(self, name: str, *, reason: str | None = None) -> SourceView:
        """Stop sending requests to a source; allocated nodes stay. Needs `sources:write`."""
        return self.transport.post(SourceView, f"/sources/{name}/pause", SourceOrder(reason=reason))

    def unpause_source(self, name: str) -> SourceView:
        """Resume sending requests to a source. Needs `sources:write`."""
        return self.transport.post(SourceView, f"/sources/{name}/unpause")

    def delete_source(self, name: str) -> None:
        """Delete a source from the server. Needs `sources:write`.

        Raises:
            ConflictError: the source has open requests.
        """
        self.transport.send("DELETE", f"/sources/{name}")

    def node_requests(self, source: str, *, open_only: bool = False) -> Iterator[NodeRequestView]:
        """Iterate over a source's requests for nodes, the newest first."""
        query = {"open": "true" if open_only else None}
        return self.transport.pages(Page[NodeRequestView], f"/sources/{source}/requests", query)

    def node_request(self, source: str, request_id: str) -> NodeRequestView:
        """Return one request for nodes."""
        return self.transport.get(NodeRequestView, f"/sources/{source}/requests/{request_id}")

    def request_nodes(self, source: str, *, nodes: int = 1) -> NodeRequestView:
        """Request nodes, even if no queued job needs them. Needs `sources:write`.

        Raises:
            ConflictError: the source is paused, or would exceed one of its limits.
            InvalidRequestError: a request of the source may not have so many nodes.
        """
        path = f"/sources/{source}/requests"
        return self.transport.post(NodeRequestView, path, NodesRequest(nodes=nodes))

    def cancel_node_request(self, source: str, request_id: str) -> NodeRequestView:
        """Make the engine cancel a request for nodes. Needs `sources:write`."""
        path = f"/sources/{source}/requests/{request_id}/cancel"
        return self.transport.post(NodeRequestView, path)

    def end_node_request(self, source: str, request_id: str) -> NodeRequestView:
        """Forget a request without a proof of its end. Needs `sources:write`.

        Afterwards, Trainyard does not know about processes that the engine may still run.

        Raises:
            ConflictError: the engine still has the job, and the provisioner is online.
        """
        path = f"/sources/{source}/requests/{request_id}/end"
        return self.transport.post(NodeRequestView, path)

    def explain_node_request(self, source: str, request_id: str) -> NodeRequestView:
        """Queue a query to the engine; the answer is added to the request's `reason`.

        Raises:
            ConflictError: the request has ended.
        """
        path = f"/sources/{source}/requests/{request_id}/explain"
        return self.transport.post(NodeRequestView, path)

    def check_source(self, name: str) -> NodeRequestView:
        """Request one node that examines its environment and ends; or return the open check.

        Needs `sources:write`.
        """
        return self.transport.post(NodeRequestView, f"/sources/{name}/check")

    def wait_for_findings(
        self, check: NodeRequestView, *, timeout: float | None = None, poll_seconds: float = 1.0
    ) -> NodeRequestView:
        """Return a check once it has findings or has ended.

        Raises:
            TimeoutError: the check had no findings and did not end within `timeout` seconds.
        """
        return self.transport.poll(
            lambda: self.node_request(check.source, check.id),
            lambda seen: bool(seen.results) or seen.state == "ended",
            waiting="the check of {0.source} is still {0.state}",
            timeout=timeout,
            poll_seconds=poll_seconds,
        )

    def wait_for_explanation(
        self, before: NodeRequestView, *, timeout: float, poll_seconds: float = 0.5
    ) -> NodeRequestView:
        """Return a request once its reason has changed or the request has ended.

        Raises:
            TimeoutError: neither happened within `timeout` seconds, because the reason still holds
                or the provisioner does not answer.
        """
        return self.transport.poll(
            lambda: self.node_request(before.source, before.id),
            lambda seen: seen.reason != before.reason or seen.state == "ended",
            waiting="the reason of {0.id} is unchanged",
            timeout=timeout,
            poll_seconds=poll_seconds,
        )
