"""A source of nodes with a provisioner that acts on the server's services."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from server.api.auth.principals import Principal, authenticate_pilot
from server.api.auth.service import create_token
from server.cluster.supply.changes import NewRequest, store_requests, withdraw
from server.cluster.supply.enroll import claim_request, register_source
from server.cluster.supply.joining import register_pilot
from server.cluster.supply.report import store_report
from server.cluster.supply.rows import (
    NodeRequest,
    Pilot,
    StoredSource,
    lock_source,
    open_requests,
)
from server.cluster.supply.service import end_request
from server.core.context import Context
from server.core.database.source_tables import node_requests, pilots, sources
from server.core.database.tables import events
from server.scheduler.autoscaling.end_shares import end_shares
from tests.actors import ADA, authenticate_token
from trainyard.protocol.node_sources.messages import (
    EngineJob,
    RequestClaim,
    RequestOrder,
    SourceRegistration,
    SourceReport,
)
from trainyard.protocol.node_sources.views import NodeRequestView
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.worker_messages import PROTOCOL, Registration

ROOT = "1c8e1d0a-98a5-4f5f-9a51-0d6f9a3a7a10"
HARDWARE = {
    "device": "cpu",
    "slots": 4,
    "device_name": "test",
    "device_memory_bytes": 2**30,
    "cores": 4,
    "memory_bytes": 2**32,
}

SETTINGS: Mapping[str, Any] = {
    "protocol": PROTOCOL,
    "name": "slurm",
    "kind": "slurm",
    "shape": {"slots": 4, "device": "cpu", "labels": {"zone": "a"}},
    "limits": {},
    "request_seconds": 3600.0,
    "idle_seconds": 60.0,
    "leave_seconds": 120.0,
    "check_addresses": True,
    "version": "0",
}


def secret_of(request_id: str, number: int) -> str:
    """Return the join secret of a pilot; a provisioner draws it."""
    return f"{request_id}-{number}".ljust(43, "x")


def hash_of(secret: str) -> str:
    """Return its hash, which the server stores."""
    return hashlib.sha256(secret.encode()).hexdigest()


def join_token(context: Context) -> str:
    """Return a new join token."""
    name = f"join-{context.new_id()}"
    return create_token(context, TokenRequest(name=name, kind="join"))[1]


class Site:
    """A registered source with its provisioner."""

    def __init__(self, context: Context, **settings: Any) -> None:
        self.context = context
        self.settings = dict(SETTINGS) | settings
        self.name: str = self.settings["name"]
        token = self.register(authenticate_token(context, join_token(context)))
        assert token is not None
        self.token = token
        self.principal = authenticate_token(context, token)

    def register(self, principal: Principal, **settings: Any) -> str | None:
        """Register with these settings; return the token of the source, if a new one is issued."""
        registration = SourceRegistration.model_validate(self.settings | settings)
        return register_source(self.context, registration, principal=principal).source_token

    def ask(self, nodes: int = 1, *, caused_by: str = "tiny", **more: Any) -> str:
        """Store a request for nodes, and return its id."""
        with self.context.database.write() as connection:
            source = lock_source(connection, self.name)
            new = NewRequest(nodes=nodes, caused_by=caused_by, **more)
            return store_requests(self.context, connection, source, [new], actor=ADA)[0]

    def withdraw(self, request_id: str) -> None:
        """Withdraw a request."""
        with self.context.database.write() as connection:
            lock_source(connection, self.name)
            rows = [r for r in open_requests(connection, self.name) if r.id == request_id]
            withdraw(self.context, connection, requests=rows, reason="not needed", actor=ADA)

    def claim(self, request_id: str, *, secrets: tuple[str, ...] | None = None) -> RequestOrder:
        """Claim a request with the secrets of its pilots."""
        if secrets is None:
            numbers = range(self.request(request_id).nodes)
            secrets = tuple(secret_of(request_id, number) for number in numbers)
        claim = RequestClaim(
            protocol=PROTOCOL, source=self.name, secret_hashes=tuple(map(hash_of, secrets))
        )
        return claim_request(self.context, request_id, claim)

    def report(self, *jobs: EngineJob, **more: Any) -> tuple[str, ...]:
        """Report the engine's description; return the jobs to cancel."""
        report = SourceReport(protocol=PROTOCOL, source=self.name, jobs=jobs, **more)
        return store_report(self.context, report, end_shares=end_shares).cancel

    def end(self, request_id: str) -> NodeRequestView:
        """End a request as a person, without proof of its end from the engine."""
        return end_request(self.context, self.name, request_id, actor=ADA, end_shares=end_shares)

    def describe(self, request_id: str, state: str, **more: Any) -> tuple[str, ...]:
        """Report one job of the engine."""
        return self.report(job(request_id, state, **more))

    def running(self, nodes: int = 1, **more: Any) -> str:
        """Return a running request, with an instance of each pilot."""
        request_id = self.ask(nodes, **more)
        self.claim(request_id)
        self.describe(request_id, "running", nodes=[instance(n) for n in range(nodes)])
        return request_id

    def join(
        self,
        request_id: str,
        *,
        index: int = 0,
        life: int = 0,
        principal: Principal | None = None,
        host: str | None = None,
        **changes: Any,
    ) -> Principal:
        """Register a pilot of a request, the first by default; return its node."""
        if principal is None:
            principal = self.secret(request_id, index)
        registration = self.registration(request_id, index=index, life=life, **changes)
        host = host or registration.address
        reply = register_pilot(self.context, registration, principal=principal, host=host)
        if reply.node_token is None:
            return principal
        return authenticate_token(self.context, reply.node_token)

    def registration(
        self, request_id: str, *, index: int = 0, life: int = 0, **changes: Any
    ) -> Registration:
        """Return the registration of a request's pilot, the first by default."""
        body = {
            "protocol": PROTOCOL,
            "node": f"{self.name}-{request_id}-{index}",
            "address": f"10.0.0.{index + 1}",
            "hardware": HARDWARE,
            "roots": {"checkpoints": ROOT},
            "worker": {"folder": f"{life:032x}", "boot_id": "b007-0000"},
            "version": "0",
            "inbox": "server",
            "pilot": {
                "request_id": request_id,
                "index": index,
                "instance": f"4711.{life}.{index}",
            },
        } | changes
        return Registration.model_validate(body)

    def secret(self, request_id: str, number: int = 0) -> Principal:
        """Return a pilot of a request, found by its secret."""
        principal = authenticate_pilot(self.context, secret_of(request_id, number))
        assert principal is not None
        return principal

    def request(self, request_id: str) -> NodeRequest:
        """Return the row of a request."""
        query = NodeRequest.select().where(node_requests.c.id == request_id)
        with self.context.database.read() as connection:
            return NodeRequest.one(connection, query)

    def pilot(self, request_id: str, number: int = 0) -> Pilot:
        """Return the row of a pilot."""
        of_pilot = (pilots.c.request_id == request_id) & (pilots.c.number == number)
        with self.context.database.read() as connection:
            return Pilot.one(connection, Pilot.select().where(of_pilot))

    def source(self) -> StoredSource:
        """Return the row of the source."""
        query = StoredSource.select().where(sources.c.name == self.name)
        with self.context.database.read() as connection:
            return StoredSource.one(connection, query)

    def told(self, kind: str) -> list[str]:
        """Return the messages of the events of a kind, oldest first."""
        chosen = select(events.c.message).where(events.c.kind == kind).order_by(events.c.id)
        with self.context.database.read() as connection:
            return list(connection.scalars(chosen))


def job(request_id: str, state: str, **more: Any) -> EngineJob:
    """Return an engine's job."""
    described = {"request_id": request_id, "ref": "4711", "state": state} | more
    return EngineJob.model_validate(described)


def instance(index: int = 0, life: int = 0, **more: Any) -> dict[str, Any]:
    """Return a node of an engine's job; each life of a pilot has another instance."""
    return {
        "index": index,
        "instance": f"4711.{life}.{index}",
        "host": f"c{index}",
        "addresses": (f"10.0.0.{index + 1}",),
    } | more
