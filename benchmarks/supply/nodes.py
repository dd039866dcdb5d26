"""Pilots that join and run, and the provisioners that start them, without HTTP and broker."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from sqlalchemy import update

from benchmarks.supply.engines import Life, SimulatedEngine
from benchmarks.supply.events import Timeline
from benchmarks.supply.mix import ROOT, SimulatedSource
from provisioner.api import ProvisionerApi
from provisioner.engine_calls import EngineCalls
from provisioner.request_folders import RequestFolders
from provisioner.settings import SourceConfig
from server.api.auth.principals import Principal, authenticate_pilot, find_holders
from server.api.auth.service import create_token
from server.cluster.supply.enroll import claim_request, register_source
from server.cluster.supply.joining import register_pilot
from server.cluster.supply.report import store_report
from server.core.context import Context
from server.core.database.tables import attempt_nodes, nodes
from server.core.errors import ConflictError, ForbiddenError, NotNamedError
from server.scheduler.autoscaling.end_shares import end_shares
from trainyard.protocol.node_sources.messages import (
    PilotIdentity,
    RequestClaim,
    RequestOrder,
    SourceReport,
    SourceReportReply,
    pilot_name,
)
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.states import AttemptNodeState
from trainyard.protocol.worker_messages import PROTOCOL, Hardware, Registration, WorkerIdentity

JOIN_AGAIN_SECONDS = 5.0
HELD = (AttemptNodeState.CLAIMED.value, AttemptNodeState.RUNNING.value)


class DirectApi(ProvisionerApi):
    """Calls the services of the server without HTTP."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def claim(self, request_id: str, claim: RequestClaim) -> RequestOrder:
        """Claim a request."""
        return claim_request(self._context, request_id, claim)

    def report(self, report: SourceReport) -> SourceReportReply:
        """Report the result of a call."""
        return store_report(self._context, report, end_shares=end_shares)


def add_source(context: Context, source: SimulatedSource, *, idle_seconds: float) -> SourceConfig:
    """Register a source like its provisioner; return the provisioner's settings of it."""
    config = SourceConfig(
        name=source.name,
        kind=source.kind,
        slots=source.slots,
        device="cpu",
        roots={"checkpoints": "/checkpoints"},
        limits=source.limits,
        request_seconds=source.request_seconds,
        idle_seconds=idle_seconds,
        leave_seconds=source.leave_seconds,
        url="https://trainyard.test",
    )
    _, token = create_token(context, TokenRequest(name=f"join-{source.name}", kind="join"))
    (principal,) = find_holders(context, [token])
    assert isinstance(principal, Principal)
    register_source(context, config.registration(version="0"), principal=principal)
    return config


def provisioner(
    context: Context, config: SourceConfig, *, engine: SimulatedEngine, folder: Path
) -> EngineCalls:
    """Return the real provisioner of a simulated engine."""
    folders = RequestFolders(folder / config.name)
    return EngineCalls(
        config, engine, folders=folders, api=DirectApi(context), url="https://trainyard.test"
    )


class Pilots:
    """The pilots of all sources: workers that heartbeat from their registration to their end."""

    def __init__(self, context: Context, timeline: Timeline, slots: dict[str, int]) -> None:
        """Use the number of slots per node of each source."""
        self._context = context
        self._timeline = timeline
        self._slots = slots
        self._chance = random.Random(0)
        self._names: dict[int, str] = {}
        self.joined: dict[str, WorkerIdentity] = {}
        """Worker of each live node."""
        self.source_of: dict[str, str] = {}
        """Source of each node that ever joined."""

    def boot(self, source: str, request_id: str, life: Life) -> None:
        """Register a pilot; it tries again until the engine has listed it."""
        if life.gone:
            return
        name = pilot_name(source, request_id, life.index)
        folder = hashlib.sha256(life.instance.encode()).hexdigest()[:32]
        worker = WorkerIdentity(folder=folder, boot_id="b007-0000")
        registration = Registration(
            protocol=PROTOCOL,
            node=name,
            address="10.0.0.1",
            hardware=_hardware(self._slots[source]),
            roots={"checkpoints": ROOT},
            worker=worker,
            version="0",
            inbox="server",
            pilot=PilotIdentity(request_id=request_id, index=life.index, instance=life.instance),
        )
        principal = authenticate_pilot(self._context, life.secret)
        assert principal is not None, "the secret of a claimed request is known"
        try:
            register_pilot(self._context, registration, principal=principal, host="10.0.0.1")
        except NotNamedError:
            again = JOIN_AGAIN_SECONDS
            self._timeline.after(again, lambda: self.boot(source, request_id, life))
            return
        except (ConflictError, ForbiddenError):
            return  # the request was withdrawn; the engine ends its job
        self._names[id(life)] = name
        self.joined[name] = worker
        self.source_of[name] = source

    def name_of(self, life: Life) -> str | None:
        """Return the node of a pilot; None before it joined, and after its end."""
        return self._names.get(id(life))

    def kill(self, life: Life) -> None:
        """End a pilot and everything on its node."""
        name = self._names.pop(id(life), None)
        if name is not None:
            del self.joined[name]

    def heartbeat(self) -> None:
        """Store heartbeats of the live nodes, and of their claimed shares."""
        now = self._context.now()
        node = update(nodes).where(nodes.c.name.in_(self.joined))
        share = update(attempt_nodes).where(
            attempt_nodes.c.node.in_(self.joined), attempt_nodes.c.state.in_(HELD)
        )
        with self._context.database.write() as connection:
            connection.execute(node.values(heartbeat_at=now))
            connection.execute(share.values(last_report_at=now, unreachable_since=None))


def _hardware(slots: int) -> Hardware:
    return Hardware(
        device="cpu",
        slots=slots,
        device_name="none",
        device_memory_bytes=2**33,
        cores=slots,
        memory_bytes=2**36,
    )
