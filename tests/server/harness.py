"""Shared by the server's tests: a clock, and short ways to a state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from sqlalchemy import Row, insert, select, text

from server.api.auth.tokens import hash_token
from server.app.periodic_tasks import TASKS
from server.core.context import Context
from server.core.database.rows import Attempt, Job
from server.core.database.scheduler_tables import shown_reason
from server.core.database.tables import (
    attempt_nodes,
    attempts,
    checkpoints,
    events,
    jobs,
    nodes,
    operations,
)
from server.core.liveness import GAP, beat
from server.core.visibility.job_labels import plain
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.reports import authenticate_share
from server.scheduler.elastic.fit_sizes import SizeFitter
from server.scheduler.elastic.grow_jobs import ElasticGrower
from server.scheduler.rounds.dispatch import Message
from server.scheduler.rounds.drain import order_isolation, run_drain
from server.scheduler.rounds.operations import OperationKeeper
from server.scheduler.rounds.reconcile import Reconciler
from server.scheduler.rounds.round import Placer
from server.scheduler.rounds.spares import SpareKeeper
from server.telemetry.ingest.receive import store_report
from tests.actors import ADA
from tests.manifests import make_manifest, state_at
from tests.server.claims import claim
from tests.server.clock import FakeClock
from tests.server.periodic import Repeated
from tests.server.submit import submit
from trainyard.protocol.manifest import ManifestFile, ManifestWriter
from trainyard.protocol.node_sources.messages import SourceMessage
from trainyard.protocol.record_parser import check_record
from trainyard.protocol.states import DesiredState
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    Hardware,
    Identity,
    LaunchMessage,
    OperationMessage,
    Report,
    WorkerIdentity,
)
from trainyard.run.directory import Phase
from trainyard.run.failures import BadWindow, Failure, FailureReason, LoadFailure
from trainyard.run.records import ExitRecord, Heartbeat, RankExit
from trainyard.spec.job import parse_job_spec

Launched = tuple[str, "Supervisor"]
"""A job's id, and its supervisor."""
AnyRow = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class ShownJob(Job):
    """A job with the reason that people see."""

    reason: Annotated[str | None, shown_reason]


WORKER = WorkerIdentity(folder="0" * 32, boot_id="b007-0000")
"""The worker of every node, unless a test names another."""
BRINGS_CODE = pytest.mark.parametrize("allow_code", [True])
"""Mark of a test whose server accepts jobs that bring code, and any variable in `env`."""


class RecordingDispatcher:
    """Records the messages, and can act as a broker that is down."""

    def __init__(self) -> None:
        self.sent: list[LaunchMessage] = []
        self.operations: list[OperationMessage] = []
        self.up_since: datetime | None = datetime.min.replace(tzinfo=UTC)
        """None means that the broker is down: messages are lost."""

    def send(self, message: Message) -> None:
        """Keep one message."""
        if self.up_since is None or isinstance(message, SourceMessage):
            return
        match message:
            case LaunchMessage():
                self.sent.append(message)
            case OperationMessage():
                self.operations.append(message)


class Harness:
    """Acts as nodes and their processes."""

    def __init__(self, context: Context, clock: FakeClock) -> None:
        self.context, self.clock = context, clock
        self.actor = ADA  # who submits jobs
        self.dispatcher = RecordingDispatcher()
        self.placer = Placer(context, self.dispatcher)
        self.reconciler = Reconciler(context, self.dispatcher)
        self.learning = Repeated(
            clock, self.placer.learn, every=TASKS["learn_durations"].every_seconds
        )
        self.fitter = Repeated(clock, SizeFitter(context, self.placer.queue).run)
        self.spares = SpareKeeper(context, self.dispatcher)
        every = TASKS["reserve_spares"].every_seconds
        self.reserving = Repeated(clock, self.spares.reserve, every=every)
        self.keeper = OperationKeeper(context, self.dispatcher)
        self.scrubs = Repeated(
            clock, self.keeper.queue_scrub, every=TASKS["queue_scrub"].every_seconds
        )

    def add_node(
        self,
        name: str = "node-1",
        *,
        slots: int = 4,
        device: str = "cpu",
        device_name: str = "test",
        roots: dict[str, str] | None = None,
        worker: WorkerIdentity = WORKER,
        inbox: str = "broker",
    ) -> str:
        """Store a node as registration does, and return its name."""
        now = self.context.now()
        hardware = Hardware.model_validate(
            {
                "device": device,
                "slots": slots,
                "device_name": device_name,
                "device_memory_bytes": 8 * 2**30,
                "cores": slots,
                "memory_bytes": 8 * 2**30 * slots,
            }
        )
        with self.context.database.write() as connection:
            connection.execute(
                insert(nodes).values(
                    name=name,
                    address=f"{name}.test",
                    hardware=hardware,
                    device=device,
                    slots=slots,
                    roots=roots or {"checkpoints": "root-1", "data": "root-2"},
                    version="0",
                    protocol=PROTOCOL,
                    worker=worker,
                    inbox=inbox,
                    registered_at=now,
                    heartbeat_at=now,
                )
            )
        return name

    def submit(self, **sections: Any) -> str:
        """Submit a job of one slot, or with other sections, and return its id."""
        spec = parse_job_spec({"name": "tiny"} | sections)
        return submit(self.context, spec, actor=self.actor).id

    def place(self) -> int:
        """Run one round of placing and preempting; return how many jobs were placed."""
        self.learning.run()
        placed = self.placer.run()
        self.placer.preempt()
        return placed

    def fit(self) -> int:
        """Run one round of resizing waiting elastic jobs to a size that fits."""
        return int(self.fitter.run())

    def keep_spares(self) -> int:
        """Run one round of the spare nodes; return how many jobs were placed on them."""
        placed = self.spares.run()
        self.reserving.run()
        return placed

    def grow(self) -> int:
        """Run one search for running elastic jobs that could grow."""
        return int(Repeated(self.clock, ElasticGrower(self.context).run).run())

    def empty(self) -> int:
        """Run one round of ordering attempts to leave drained nodes."""
        return run_drain(self.context, order_isolation(self.context))

    def pass_time(self, seconds: float) -> None:
        """Advance the clock while servers are up, with the longest pauses that are no gap."""
        first = min(seconds, 1.0)  # the servers may have been away before
        often, rest = divmod(seconds - first, GAP.seconds)
        for pause in (first, *[GAP.seconds] * int(often), rest):
            self.clock.advance(pause)
            beat(self.context)

    def reconcile(self, *, seconds: float = 0.0) -> None:
        """Advance the clock while servers are up without reports, then reconcile."""
        self.pass_time(seconds)
        self.reconciler.run()

    def launched(self, **sections: Any) -> tuple[str, list[Supervisor]]:
        """Submit a job, place it, and claim all of its shares."""
        job_id = self.submit(**sections)
        assert self.place() == 1
        return job_id, self.claim_all(job_id)

    def running(self, *, step: int = 1, **sections: Any) -> tuple[str, list[Supervisor]]:
        """Submit a job and bring it to a completed step."""
        job_id, supervisors = self.launched(**sections)
        for supervisor in supervisors:
            supervisor.train(step)
        return job_id, supervisors

    def claim_all(self, job_id: str) -> list[Supervisor]:
        """Claim the shares of the newest attempt, by node rank, as the workers of their nodes."""
        attempt = self.attempt(job_id)
        with self.context.database.read() as connection:
            rows = connection.execute(select(nodes.c.name, nodes.c.worker))
            workers = {row.name: row.worker for row in rows}
        return [
            Supervisor(self, attempt.id, node=share.node, worker=workers[share.node])
            for share in self.shares(job_id)
            if share.spare_since is None
        ]

    def commit_checkpoint(
        self,
        job_id: str,
        step: int,
        *,
        files: tuple[ManifestFile, ...] = (),
        writers: tuple[ManifestWriter, ...] = (),
    ) -> str:
        """Put a checkpoint of the newest attempt into the catalog, and return its id."""
        attempt = self.attempt(job_id)
        now = self.context.now()
        spec = self.job(job_id).spec
        manifest = make_manifest(
            job_id,
            attempt.number,
            state_at(step, sequences=spec.training.global_batch_size, tokens=128),
            created_at=now,
            layout=attempt.layout,
            spec=spec.model_copy(update={"env": {}}),
            parent=attempt.parent_checkpoint_id,
            model=spec.model,
            seq_len=spec.training.seq_len,
            files=files,
            writers=writers,
        )
        row = {
            "id": manifest.checkpoint_id,
            "job_id": job_id,
            "attempt_id": attempt.id,
            "attempt": attempt.number,
            "step": step,
            "kind": "interval",
            "root": "checkpoints",
            "path": f"{job_id}/a{attempt.number}/step-{step}",
            "size": manifest.size,
            "files": len(files),
            "layout": str(attempt.layout),
            "dtype": "float32",
            "save_seconds": 0.1,
            "writers": len(writers) or None,
            "write_seconds": manifest.write_seconds,
            "parent_id": attempt.parent_checkpoint_id,
            "metadata_digest": "m" * 32,
            "manifest": manifest,
            "created_at": now,
        }
        with self.context.database.write() as connection:
            connection.execute(insert(checkpoints).values(row))
        return manifest.checkpoint_id

    def job(self, job_id: str) -> Any:
        """Return the job's row, with the reason that people see."""
        with self.context.database.read() as connection:
            row = ShownJob.one(connection, ShownJob.select().where(jobs.c.id == job_id))
        return replace(row, reason=row.reason and plain(row.reason, SYSTEM_SCOPE))

    def attempt(self, job_id: str) -> Any:
        """Return the row of the newest attempt."""
        newest = Attempt.select().where(attempts.c.job_id == job_id)
        with self.context.database.read() as connection:
            return Attempt.one(connection, newest.order_by(attempts.c.number.desc()).limit(1))

    def spoil_spec(self, job_id: str) -> None:
        """Store a spec with a field of a later version, which cannot be read."""
        spec = {"spec": '{"name": "tiny", "of_a_later_version": 1}', "id": job_id}
        with self.context.database.write() as connection:
            connection.execute(text("UPDATE jobs SET spec = :spec WHERE id = :id"), spec)

    def shares(self, job_id: str) -> list[AnyRow]:
        """Return the rows of the newest attempt's nodes, by node rank."""
        shares = select(attempt_nodes).where(attempt_nodes.c.attempt_id == self.attempt(job_id).id)
        with self.context.database.read() as connection:
            return list(connection.execute(shares.order_by(attempt_nodes.c.node_rank)))

    def kinds(self, job_id: str) -> list[str]:
        """Return the kinds of the job's events, oldest first."""
        chosen = select(events.c.kind).where(events.c.job_id == job_id)
        with self.context.database.read() as connection:
            return list(connection.scalars(chosen.order_by(events.c.id)))

    def dump(self) -> Mapping[str, list[Any]]:
        """Return every row that a transition may touch, to compare before and after."""
        with self.context.database.read() as connection:
            return {
                table.name: sorted(map(repr, connection.execute(select(table))))
                for table in (jobs, attempts, attempt_nodes, operations, events)
            }


class Supervisor:
    """One node's claimed share of an attempt; it reports like a supervisor."""

    def __init__(
        self,
        harness: Harness,
        attempt_id: str,
        *,
        node: str,
        pid: int = 100,
        worker: WorkerIdentity = WORKER,
    ) -> None:
        self.harness = harness
        self.attempt_id = attempt_id
        self.node = node
        self.identity = Identity(boot_id="boot", pid_namespace="1", pid=pid, start_time=1)
        self.reply = claim(harness.context, attempt_id, node=node, worker=worker)

    def report(
        self,
        *,
        phase: Phase | None = None,
        step: int = 0,
        exit_record: ExitRecord | None = None,
        unusable: Mapping[str, str] | None = None,
    ) -> DesiredState:
        """Send a heartbeat, or the last report; return the order in the answer."""
        context = self.harness.context
        heartbeat = None
        if phase is not None:
            heartbeat = Heartbeat(phase=phase, step=step, time=context.now().timestamp())
        report = Report(
            protocol=PROTOCOL,
            node=self.node,
            identity=self.identity,
            heartbeat=heartbeat,
            unusable=dict(unusable or {}),
            exit=exit_record,
        )
        token_hash = hash_token(self.reply.attempt_token)
        share = authenticate_share(context, self.attempt_id, token_hash)
        return store_report(context, share, report).desired

    def train(self, step: int = 1) -> DesiredState:
        """Report a completed step."""
        return self.report(phase=Phase.TRAINING, step=step)

    def end(
        self,
        outcome: str,
        reason: FailureReason | None = None,
        *,
        bad_window: BadWindow | None = None,
        load: LoadFailure | None = None,
        names_node: bool = False,
        names: str | None = None,
        step: int | None = None,
        ranks: tuple[RankExit, ...] = (),
        **fields: Any,
    ) -> None:
        """Send the last report; its failure may name this node, or another one."""
        if names is None and (names_node or fields.get("node_at_fault")):
            names = self.node
        failure = (
            Failure(
                reason=reason,
                message=f"{reason} on {self.node}",
                node=names,
                step=step,
                bad_window=bad_window,
                load=load,
                **fields,
            )
            if reason
            else None
        )
        time = self.harness.context.now().timestamp()
        of_exit = {"outcome": outcome, "failure": failure, "ranks": ranks, "time": time}
        self.report(exit_record=check_record(ExitRecord, of_exit))
