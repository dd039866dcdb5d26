"""Plays provisioners: sources in each state, requests with reasons of engines, nodes, a check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import update

from server.api.auth.principals import authenticate_pilot
from server.cluster.supply import service
from server.cluster.supply.joining import store_check
from server.core.context import Context
from server.core.database.source_tables import sources
from tests.actors import ADA
from tests.server.cluster.supply.site import Site, instance, secret_of
from trainyard.protocol.node_sources.messages import (
    CheckReport,
    CheckResult,
    NeedsLogin,
    PilotIdentity,
)
from trainyard.protocol.worker_messages import PROTOCOL

SLURM, GATE, CLOUD, AWAY = "slurm-a100", "lab-gate", "k8s-eu-west", "slurm-old"
LOGIN = "ssh -MNf -o ControlPath=~/.ssh/trainyard-gate gate.lab.example.org"
WHY = "Resources: nodes required for job are DOWN, DRAINED or reserved (ReqNodeNotAvail)"
REFUSAL = (
    "admission webhook denied the request: "
    "quota of team-vision for nvidia.com/gpu is 16, 24 are in use"
)
A100 = {"slots": 8, "device": "cuda", "labels": {"gpu": "a100"}}
FINDINGS = (
    CheckResult(name="route", passed=True, detail="https://trainyard.example.org answers in 12 ms"),
    CheckResult(name="python", passed=True, detail="3.11.9, torch 2.13.0+cu130"),
    CheckResult(
        name="roots",
        passed=False,
        detail="checkpoints: /scratch/checkpoints is owned by uid 1000, not writable for 2041",
    ),
    CheckResult(name="clock", passed=True, detail="0.02 s behind the server's"),
)


@dataclass(frozen=True)
class Supply:
    """The node requests."""

    pending: str
    """Request that waits in the engine, with its reason."""
    forgotten: str
    """Request that runs, which the engine no longer describes."""
    running: str
    """Request with a node."""
    check: str
    """Check with findings."""

    @property
    def node(self) -> str:
        """Node of the running request."""
        return f"{SLURM}-{self.running}-0"


def play_supply(context: Context, *, wanted_by: str) -> Supply:
    """Register sources and let their engines answer; one request is for the job `wanted_by`."""
    now = context.now().timestamp()
    slurm = Site(
        context,
        name=SLURM,
        shape=A100,
        limits={"nodes": 32, "node_hours_per_month": 5000.0},
        request_seconds=4 * 3600.0,
    )
    ended = slurm.ask(4, caused_by=wanted_by)
    slurm.claim(ended)
    slurm.describe(ended, "ended", ref="99102", gone=True, reason="TIMEOUT",
                   starts_at=now - 20_000, ends_at=now - 5_600)  # fmt: skip
    check = _check(context, slurm)
    running = slurm.running(caused_by=wanted_by)
    slurm.describe(running, "running", ref="99124", starts_at=now - 5400, ends_at=now + 9000,
                   nodes=[instance()])  # fmt: skip
    slurm.join(running, labels={"gpu": "a100"}, roots={"checkpoints": str(UUID(int=1))})
    forgotten = slurm.running()
    slurm.describe(forgotten, "unknown", ref="99127")
    pending = slurm.ask(2, caused_by=wanted_by)
    slurm.claim(pending)
    slurm.describe(pending, "pending", ref="99131", reason=WHY, starts_at=now + 2700)
    gate = Site(context, name=GATE, kind="ssh", request_seconds=None)
    needs = NeedsLogin(reason="the master connection has expired", command=LOGIN)
    gate.report(error="Permission denied (keyboard-interactive)", needs_login=needs)
    cloud = Site(context, name=CLOUD, kind="kubernetes", shape=A100)
    cloud.report(complete=True)
    cloud.report(asked=cloud.ask(), error=REFUSAL, refused=True)
    Site(context, name=AWAY, shape=A100)
    _keep(context, online=(SLURM, GATE, CLOUD))
    return Supply(pending=pending, forgotten=forgotten, running=running, check=check)


def _check(context: Context, site: Site) -> str:
    """Play a check with a pilot that finds a problem."""
    request_id = service.check_source(context, site.name, actor=ADA).id
    site.claim(request_id)
    site.describe(request_id, "running", ref="99110", nodes=[instance()])
    pilot = PilotIdentity(request_id=request_id, index=0, instance=instance()["instance"])
    principal = authenticate_pilot(context, secret_of(request_id, 0))
    assert principal is not None
    report = CheckReport(protocol=PROTOCOL, pilot=pilot, results=FINDINGS)
    store_check(context, report, principal=principal, host="10.0.0.1")
    site.describe(request_id, "ended", ref="99110", gone=True, reason="COMPLETED")
    return request_id


def _keep(context: Context, *, online: Sequence[str]) -> None:
    """Let these sources stay online, and no other: no provisioner reports while pages are open."""
    now = context.now()
    for names, heard_at in (
        (sources.c.name.in_(online), now + timedelta(days=1)),
        (sources.c.name.not_in(online), now - timedelta(hours=7)),
    ):
        with context.database.write() as connection:
            connection.execute(update(sources).where(names).values(heard_at=heard_at))
