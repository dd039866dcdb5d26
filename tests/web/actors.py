"""Plays workers and trainers against the real services, as data for a dashboard."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from server.api.auth.service import create_token
from server.api.auth.tokens import hash_token
from server.cluster.nodes.register import register
from server.core.context import Context
from server.core.settings import Settings
from server.core.subject import Actor
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.reports import authenticate_share
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import stop
from server.telemetry.ingest.receive import store_report
from tests.actors import authenticate_token
from tests.manifests import make_manifest, state_at
from tests.server.clock import FakeClock
from tests.server.harness import WORKER, Harness, Supervisor
from trainyard.protocol.manifest import DCP_METADATA, ManifestFile, ManifestWriter, SaveSettled
from trainyard.protocol.node_samples import Accelerator
from trainyard.protocol.record_parser import check_record
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    Chunk,
    Hardware,
    Registration,
    Report,
    ReportReply,
)
from trainyard.run.directory import Phase
from trainyard.run.failures import Failure
from trainyard.run.record_base import to_json
from trainyard.run.records import EventRecord, ExitRecord, Heartbeat, MetricRecord, RequestAnswer
from trainyard.spec.job import JobSpec

CHUNK_LINES = 2000
PROVENANCE: dict[str, object] = {
    "git_commit": "3f9c2d17b0e84a6f9d1c5e2a7b8046f3d2c1a09e",
    "git_diff": (
        "diff --git a/trainer/loop.py b/trainer/loop.py\n"
        "--- a/trainer/loop.py\n+++ b/trainer/loop.py\n@@ -41,4 +41,4 @@ def run() -> None:\n"
        "     step = state.step\n-    clip = 1.0\n+    clip = spec.training.max_grad_norm or 1.0\n"
    ),
    "git_diff_truncated": False,
    "packages": {f"package-{n:02}": f"{n % 7}.{n % 11}.{n % 13}" for n in range(60)}
    | {"torch": "2.13.0", "numpy": "2.4.2", "pydantic": "2.13.1"},
    "python": "3.13.5",
    "torch": "2.13.0+cu130",
    "cuda": "13.0",
    "cuda_driver": "590.44",
    "nccl": "2.30.3",
    "host": "gpu-rack-07.cluster.example",
    "platform": "Linux-6.12.48-x86_64-with-glibc2.41",
    "cpu_count": 96,
    "gpus": ["NVIDIA H200"] * 4,
}


class Stage(Harness):
    """Jobs, nodes and time, controlled by a scene."""

    def __init__(self, context: Context, clock: FakeClock) -> None:
        super().__init__(context, clock)
        self.clock = clock

    @classmethod
    def open(cls, context: Context, *, at: datetime) -> Stage:
        """Return a stage whose time starts at `at`."""
        clock = FakeClock()
        clock.advance((at - clock.now()).total_seconds())
        return cls(
            Context(settings=context.settings, database=context.database, clock=clock), clock
        )

    def join(
        self,
        name: str,
        *,
        slots: int,
        device_name: str,
        gib: int,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Join a node of GPUs, like its worker; `device_uuid` names its GPUs."""
        _, token = create_token(self.context, TokenRequest(name=f"join-{name}", kind="join"))
        hardware = Hardware(
            device="cuda",
            slots=slots,
            device_name=device_name,
            device_memory_bytes=gib * 2**30,
            cores=96,
            memory_bytes=1024 * 2**30,
            accelerators=tuple(
                Accelerator(
                    index=slot,
                    uuid=device_uuid(name, slot),
                    name=device_name,
                    memory_bytes=gib * 2**30,
                )
                for slot in range(slots)
            ),
            driver="590.44",
        )
        registration = Registration(
            protocol=PROTOCOL,
            node=name,
            address=f"{name}.cluster.example",
            hardware=hardware,
            roots={"checkpoints": str(UUID(int=1)), "data": str(UUID(int=2))},
            worker=WORKER,
            version="0.1.0",
            labels=dict(labels or {}),
        )
        register(self.context, registration, principal=authenticate_token(self.context, token))

    def start(self, job_id: str, *, seconds: float = 20) -> Run:
        """Place a queued job and claim it, and return the run of its newest attempt."""
        self.clock.advance(seconds)
        assert self.place() >= 1
        return Run(self, job_id, self.claim_all(job_id))

    def resume(self, job_id: str, *, seconds: float = 300, **fields: Any) -> Run:
        """Resume an ended job, and return the run of the new attempt."""
        self.clock.advance(seconds)
        request = ResumeRequest.model_validate(fields)
        resume(self.context, job_id, request, actor=Actor("ada", scope=SYSTEM_SCOPE))
        return self.start(job_id)


class Run:
    """Plays the trainer and the supervisors of one attempt, with their reports."""

    def __init__(self, stage: Stage, job_id: str, supervisors: Sequence[Supervisor]) -> None:
        self._stage = stage
        self._job_id = job_id
        self._supervisors = list(supervisors)
        self._sent: dict[str, int] = {}
        attempt = stage.attempt(job_id)
        job = stage.job(job_id)
        self.spec: JobSpec = attempt.overrides.apply(job.spec)
        self.attempt: int = attempt.number
        self.step: int = attempt.start_step
        self._parent: str | None = attempt.parent_checkpoint_id
        self._layout = attempt.layout
        self.report(Phase.STARTING, provenance=PROVENANCE | {"attempt_note": f"#{self.attempt}"})
        if self._parent is not None:
            self.tell("resumed", {"checkpoint_id": self._parent})

    @property
    def context(self) -> Context:
        """Surroundings of the server that it reports to."""
        return self._stage.context

    @property
    def stage(self) -> Stage:
        """The stage, for other jobs."""
        return self._stage

    def train(
        self,
        to_step: int,
        *,
        seconds_per_step: float = 2.0,
        strange: dict[int, dict[str, float]] | None = None,
        save_every: int = 0,
        batch: int = 500,
    ) -> None:
        """Report steps up to `to_step`, with some values instead of smooth ones."""
        while self.step < to_step:
            steps = range(self.step + 1, min(self.step + batch, to_step) + 1)
            lines = []
            for step in steps:
                now = self._stage.clock.advance(seconds_per_step)
                values = self._values(step, seconds_per_step) | (strange or {}).get(step, {})
                digest = f"{step * 2654435761 % 2**64:016x}"
                lines.append(
                    MetricRecord(step=step, time=now.timestamp(), values=values, data_digest=digest)
                )
            self.step = steps[-1]
            self.report(
                Phase.TRAINING,
                {"metrics": "".join(to_json(line) + "\n" for line in lines).encode()},
            )
            for step in steps:
                if save_every and step % save_every == 0:
                    self.save(step)

    def save(self, step: int | None = None, *, kind: str = "interval") -> str:
        """Commit a checkpoint and return its id."""
        step = self.step if step is None else step
        training = self.spec.training
        manifest = make_manifest(
            self._job_id,
            self.attempt,
            state_at(step, sequences=training.global_batch_size, tokens=training.seq_len),
            created_at=self._stage.clock.now(),
            layout=self._layout,
            seed=training.seed,
            spec=self.spec.model_copy(update={"env": {}}),
            parent=self._parent,
            kind=kind,
            model=self.spec.model,
            seq_len=training.seq_len,
            save_seconds=3.4,
            files=(
                ManifestFile(path=DCP_METADATA, size=48_112, xxh3_128="a" * 32),
                ManifestFile(path="__0_0.distcp", size=1_900_544_000, xxh3_128="b" * 32),
            ),
            writers=(ManifestWriter(rank=0, size=1_900_544_000, files=1, write_seconds=1.5),),
        )
        identifier = manifest.checkpoint_id
        self.tell("checkpoint_committed", manifest.model_dump(mode="json"), at=step)
        settled = SaveSettled(checkpoint_id=identifier, stall_seconds=0.02)
        self.tell("checkpoint_settled", settled.model_dump(mode="json"), at=step)
        return identifier

    def write(self, rank: int, lines: Iterable[str]) -> None:
        """Report output of a rank."""
        listed = list(lines)
        for start in range(0, len(listed), CHUNK_LINES * 10):
            part = listed[start : start + CHUNK_LINES * 10]
            self.report(None, {f"log:{rank}": "".join(f"{line}\n" for line in part).encode()})

    def tell(self, kind: str, data: dict[str, object], *, at: int | None = None) -> None:
        """Report an event of the trainer."""
        time = self._stage.clock.now().timestamp()
        step = self.step if at is None else at
        line = check_record(EventRecord, {"time": time, "kind": kind, "step": step, "data": data})
        self.report(None, {"events": to_json(line).encode() + b"\n"})

    def answer_requests(self, message: str) -> bool:
        """Answer the requests in the reply to a report; return whether any existed."""
        supervisor = self._supervisors[0]
        reply = self._send(supervisor, Report(**_sender(supervisor)))
        answer = RequestAnswer(ok=True, message=message, step=self.step)
        answers = {pending.id: answer for pending in reply.requests}
        self._send(supervisor, Report(**_sender(supervisor), answers=answers))
        return bool(answers)

    def ask_to_stop(self) -> None:
        """Request a stop, like a person."""
        stop(self._stage.context, self._job_id, actor=Actor("ada", scope=SYSTEM_SCOPE), reason="")

    def end(self, outcome: str, failure: Failure | None = None) -> None:
        """Report the end on every node."""
        self._stage.clock.advance(4)
        record = check_record(
            ExitRecord,
            {
                "outcome": outcome,
                "failure": failure,
                "ranks": (),
                "time": self._stage.clock.now().timestamp(),
            },
        )
        for supervisor in self._supervisors:
            self._send(supervisor, Report(**_sender(supervisor), exit=record))

    def report(
        self,
        phase: Phase | None,
        files: dict[str, bytes] | None = None,
        *,
        provenance: dict[str, object] | None = None,
    ) -> None:
        """Send a heartbeat from every node, and new bytes of files from the first one."""
        now = self._stage.clock.now().timestamp()
        beat = Heartbeat(phase=phase, step=self.step, time=now) if phase is not None else None
        chunks = [self._chunk(file, content) for file, content in (files or {}).items()]
        for index, supervisor in enumerate(self._supervisors):
            leads = index == 0
            self._send(
                supervisor,
                Report(
                    **_sender(supervisor),
                    heartbeat=beat,
                    provenance=provenance if leads else None,
                    chunks=tuple(chunks) if leads else (),
                ),
            )

    def _send(self, supervisor: Supervisor, report: Report) -> ReportReply:
        token_hash = hash_token(supervisor.reply.attempt_token)
        share = authenticate_share(self._stage.context, supervisor.attempt_id, token_hash)
        return store_report(self._stage.context, share, report)

    def _chunk(self, file: str, content: bytes) -> Chunk:
        start = self._sent.get(file, 0)
        self._sent[file] = end = start + len(content)
        packed = base64.b64encode(zlib.compress(content)).decode()
        return Chunk(file=file, start=start, end=end, content=packed)

    def _values(self, step: int, seconds: float) -> dict[str, float]:
        wave = math.sin(step * 12.9898) * 43758.5453 % 1 - 0.5
        loss = 1.6 + 9 / (1 + step / 60) ** 0.7 + wave * 0.12
        per_device = self.spec.tokens_per_step / seconds / self._layout.world_size
        values = {
            "train/loss": loss,
            "train/grad_norm": 0.4 + 2 / (1 + step / 90) + abs(wave) * 0.5,
            "train/lr": self.spec.schedule.rate(step),
            "train/tokens": float(step * self.spec.tokens_per_step),
            "train/sequences": float(step * self.spec.training.global_batch_size),
            "perf/tokens_per_second_per_device": per_device * (1 + wave * 0.04),
            "perf/step_seconds": seconds * (1 + wave * 0.04),
            "perf/data_seconds": 0.01 + abs(wave) * 0.01,
            "memory/peak_reserved_gib": 61.2 + (step % 50 == 0) * 3.5,
        }
        if step % 100 == 0:
            values |= {"checkpoint/stall_seconds": 3.1 + wave, "checkpoint/save_seconds": 3.4}
        return values


def device_uuid(node: str, slot: int) -> str:
    """Return the UUID of a GPU of a node that joined."""
    return f"GPU-{node}-{slot}"


def open_context(folder: Path) -> Context:
    """Return the context of a server on a SQLite file in `folder` with the current schema."""
    from server.core.context import SystemClock
    from server.core.database.engine import Database
    from server.core.database.migrate import upgrade

    url = f"sqlite:///{folder / 'trainyard.db'}"
    settings = Settings(database_url=url, state_dir=folder, allow_code=True)
    context = Context(settings=settings, database=Database(url), clock=SystemClock())
    upgrade(context.database)
    context.secrets.create()
    return context


def _sender(supervisor: Supervisor) -> dict[str, Any]:
    return {
        "protocol": PROTOCOL,
        "node": supervisor.node,
        "identity": supervisor.identity,
    }
