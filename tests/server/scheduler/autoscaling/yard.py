"""A scheduler with a source of nodes, on a clock that the test moves."""

from __future__ import annotations

from server.cluster.supply.queries import list_requests
from server.scheduler.autoscaling.keeper import SupplyKeeper
from server.scheduler.autoscaling.leave_before_end import LeaveKeeper
from tests.server.cluster.supply.site import Site, instance
from tests.server.harness import Harness, Supervisor
from trainyard.protocol.node_sources.messages import SourceMessage
from trainyard.protocol.node_sources.views import NodeRequestView


class Yard:
    """A scheduler with a source."""

    def __init__(self, harness: Harness, site: Site | None = None) -> None:
        self.harness = harness
        self.site = site
        self.sent: list[SourceMessage] = []
        self.keeper = SupplyKeeper(
            harness.context,
            harness.placer.queue,
            over_quota=lambda: harness.placer.over_quota,
            send=self.sent.append,
        )
        self.leaving = LeaveKeeper(harness.context)

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass, and run the parts of a round that matter."""
        while seconds > 0:
            step = min(seconds, 10.0)
            self.harness.clock.advance(step)
            seconds -= step
            if self.site is not None:
                self.site.report()
            self.leaving.run()
            self.harness.empty()
            self.harness.place()
            self.keeper.run()

    def requests(self) -> list[NodeRequestView]:
        """Return all requests, the oldest first."""
        return list_requests(self.harness.context, "slurm", open_only=None, after=None, limit=100)[
            ::-1
        ]

    def calls(self) -> list[tuple[str, str | None]]:
        """Return the calls that were sent since the last time."""
        sent: list[tuple[str, str | None]] = [(each.call, each.request_id) for each in self.sent]
        self.sent.clear()
        return sent


def start(yard: Yard, request_id: str) -> str:
    """Start a request in the engine, and join its pilot; return the node."""
    assert yard.site is not None
    yard.site.claim(request_id)
    yard.site.describe(request_id, "running", nodes=[instance()])
    yard.site.join(request_id)
    return f"slurm-{request_id}-0"


def trained(yard: Yard) -> tuple[NodeRequestView, Supervisor]:
    """Train a job of one node on a request that it caused; return both."""
    job_id = yard.harness.submit(resources={"world_size": 4})
    yard.tick()
    (request,) = yard.requests()
    start(yard, request.id)
    yard.tick()
    (supervisor,) = yard.harness.claim_all(job_id)
    supervisor.train()
    return request, supervisor
