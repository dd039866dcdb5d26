"""Calls of the SDK for nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainyard.client.transport import Transport
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.nodes import (
    CordonRequest,
    DrainRequest,
    LabelChange,
    NodeView,
    Running,
)


class NodeCalls:
    """Calls of `Client` for nodes."""

    transport: Transport
    """Sends the requests."""

    def nodes(self) -> Iterator[NodeView]:
        """Iterate over the nodes."""
        return self.transport.pages(Page[NodeView], "/nodes")

    def drain(self, node: str, *, running: Running = "move") -> NodeView:
        """Place no new attempts on a node; running ones move or finish, as `running` specifies."""
        return self.transport.post(NodeView, f"/nodes/{node}/drain", DrainRequest(running=running))

    def undrain(self, node: str) -> NodeView:
        """End a drain, so that attempts are placed on the node again."""
        return self.transport.post(NodeView, f"/nodes/{node}/undrain")

    def cordon(self, node: str, *, reason: str | None = None) -> NodeView:
        """Place no new attempts on a node; running attempts finish."""
        body = CordonRequest(reason=reason)
        return self.transport.post(NodeView, f"/nodes/{node}/cordon", body)

    def uncordon(self, node: str) -> NodeView:
        """End a cordon or a drain; earlier failures no longer count against the node."""
        return self.transport.post(NodeView, f"/nodes/{node}/uncordon")

    def label_node(self, node: str, labels: Mapping[str, str | None]) -> NodeView:
        """Change labels of a node; None removes a label that an earlier call set."""
        body = LabelChange(labels=dict(labels))
        return self.transport.post(NodeView, f"/nodes/{node}/labels", body)
