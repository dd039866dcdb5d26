"""A rank that trains nothing: it keeps the contract of a run directory, in milliseconds.

`python -m trainer check RUN` and `python -m trainer RUN`, as the worker runs them. The state is one
digest, which each step replaces by a digest of itself and the step; loss and data digest follow
from it. So a step that is left out, done twice, or continued from another checkpoint changes every
later value.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tests.chaos.stand_in.meeting import Meeting
from tests.chaos.stand_in.storage import TRANSIENT, OutrunError, Storage
from trainyard.run.control_files import request_files, should_stop, write_answer
from trainyard.run.directory import STACKS_SIGNAL, Phase, RunDirectory
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.record_base import to_plain
from trainyard.run.record_files import append_record, create_record, replace_record
from trainyard.run.records import (
    EventRecord,
    Heartbeat,
    MetricRecord,
    Outcome,
    RequestAnswer,
    RunEventKind,
)

STEP_SECONDS = 0.08
RETRY_SECONDS = 2.0
GO_ON, STOP, SAVE = "go on", "stop", "save"


class Attempt:
    """One rank of an attempt."""

    def __init__(self, folder: Path) -> None:
        """Read the run directory.

        Raises:
            OSError, ValueError: a record is missing or damaged.
        """
        self.run = RunDirectory(folder)
        self.spec = json.loads(self.run.spec.read_bytes())
        self.attempt = json.loads(self.run.attempt.read_bytes())
        self.rank = int(os.environ["RANK"])
        self.leads_node = os.environ["LOCAL_RANK"] == "0"
        root = Path(self.attempt["roots"][self.spec["checkpoint"]["root"]])
        self.storage = Storage(root, self.attempt["job_id"], self.attempt["attempt"])
        self.phase = Phase.STARTING
        self.counters: dict[str, Any] = {
            "step": 0,
            "tokens": 0,
            "data": {"position": 0, "consumed": 0, "skipped": [], "dataset_digest": "stand-in"},
        }
        self.state = ""
        self.start = self.counters
        self.checkpoint_id: str | None = None
        self.saved_step: int | None = None
        self.failed_saves = 0
        self.answered: set[str] = set()

    @property
    def step(self) -> int:
        """Completed steps."""
        step: int = self.counters["step"]
        return step

    def train(self) -> Outcome:
        """Meet the other ranks, load, step, save, and return the outcome.

        Raises:
            OSError: another rank has ended, or storage refuses for good.
            OutrunError: a newer attempt runs.
        """
        self.enter(Phase.STARTING)
        meeting = Meeting()
        if self.rank == 0:
            self.storage.raise_fence()
        self.enter(Phase.LOADING)
        if (resume := self.attempt["resume"]) is not None:
            self.counters, self.state = self.storage.load(resume)
            self.start, self.checkpoint_id = self.counters, resume["checkpoint_id"]
            compared = {"changed": [], "compared": "spec", "parts": resume["parts"]}
            self.event("resumed", {"checkpoint_id": self.checkpoint_id, **compared})
        meeting.agree(lambda: self.save("preflight"))
        self.enter(Phase.TRAINING)
        last, decision = self.spec["training"]["steps"], GO_ON
        while self.step < last and decision != STOP:
            time.sleep(STEP_SECONDS)
            decision = meeting.agree(self.decide)
            self.advance()
            if decision == STOP:
                self.event("stop_agreed", {})
            elif self.step < last and (decision == SAVE or self.is_due):
                meeting.agree(lambda: self.save("interval"))
            self.beat()
        self.enter(Phase.ENDING)
        kind = "final" if self.step == last else "stop"
        while not meeting.agree(lambda: self.save(kind)):
            self.beat()
            time.sleep(RETRY_SECONDS)
        self.answer_requests()
        return Outcome(
            outcome="succeeded" if kind == "final" else "stopped",
            step=self.step,
            checkpoint_id=self.checkpoint_id,
        )

    def decide(self) -> str:
        """Return what all ranks do after this step; rank 0 decides."""
        if should_stop(self.run):
            return STOP
        retry_due = self.failed_saves and time.monotonic() > self.retry_at
        asked = any(number not in self.answered for number, _ in request_files(self.run))
        return SAVE if retry_due or asked else GO_ON

    @property
    def is_due(self) -> bool:
        """Whether this step is saved."""
        interval: int = self.spec["checkpoint"]["interval_steps"]
        return interval > 0 and self.step % interval == 0

    def advance(self) -> None:
        """Do one step and record it."""
        training, data = self.spec["training"], self.counters["data"]
        sequences = training["global_batch_size"]
        moved = {name: data[name] + sequences for name in ("position", "consumed")}
        tokens = self.counters["tokens"] + sequences * training["seq_len"]
        self.counters = {"step": self.step + 1, "tokens": tokens, "data": data | moved}
        self.state = blake2b(f"{self.state} {self.step}".encode(), digest_size=16).hexdigest()
        if self.rank == 0:
            values = {
                "train/loss": int(self.state[:8], 16) / 2**32,
                "train/lr": self.spec["optimizer"]["lr"],
                "train/tokens": float(tokens),
                "train/sequences": float(data["consumed"] + sequences),
            }
            record = MetricRecord(
                step=self.step, time=time.time(), values=values, data_digest=self.state
            )
            append_record(self.run.metrics, record)

    def save(self, kind: str) -> bool:
        """Save this step on rank 0; return whether it is saved.

        Raises:
            OSError: the storage refuses for a reason that stays, or the first save fails.
            OutrunError: a newer attempt runs.
        """
        if self.saved_step == self.step:
            return True
        spec = self.spec | {"env": {}}
        described = {
            "train_state": self.counters,
            "start": self.start,
            "layout": self.attempt["layout"],
            "seed": spec["training"]["seed"],
            "spec_digest": "stand-in",
            "spec": spec,
            "parent": self.checkpoint_id,
            "kind": kind,
            "param_dtype": spec["training"]["param_dtype"],
            "torch_version": "stand-in",
        }
        try:
            manifest = self.storage.save(self.state, described)
        except OSError as error:
            if error.errno not in TRANSIENT or kind == "preflight":
                raise
            self.note_failed_save(kind, error)
            return False
        self.failed_saves, self.saved_step = 0, self.step
        self.checkpoint_id = manifest["checkpoint_id"]
        self.event("checkpoint_committed", manifest)
        settled = {"checkpoint_id": self.checkpoint_id, "stall_seconds": manifest["save_seconds"]}
        self.event("checkpoint_settled", settled)
        self.answer_requests()
        return True

    def note_failed_save(self, kind: str, error: OSError) -> None:
        """Record a save that is tried again."""
        now = datetime.now(UTC)
        if not self.failed_saves:
            self.failing_since = now
        self.failed_saves += 1
        self.retry_at = time.monotonic() + RETRY_SECONDS
        failure = {
            "kind": kind,
            "message": str(error),
            "tries": self.failed_saves,
            "failing_since": self.failing_since.isoformat(),
            "next_try_at": (now + timedelta(seconds=RETRY_SECONDS)).isoformat(),
            "give_up_at": (now + timedelta(hours=1)).isoformat(),
            "saved_step": self.saved_step,
            "step": self.step,
        }
        self.event("save_failed", failure)

    def answer_requests(self) -> None:
        """Answer the open requests for a save, which is done."""
        for number, _ in request_files(self.run):
            if self.rank == 0 and number not in self.answered:
                self.answered.add(number)
                message = f"saved as {self.checkpoint_id}"
                answer = RequestAnswer(ok=True, message=message, step=self.step)
                write_answer(self.run, number, answer)
                self.event("request_answered", {"request_id": number, **to_plain(answer)})

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        self.phase = phase
        self.beat()
        self.event("phase", {"phase": phase.value})

    def beat(self) -> None:
        """Write a heartbeat."""
        if self.leads_node:
            beat = Heartbeat(phase=self.phase, step=self.step, time=time.time())
            replace_record(self.run.heartbeat, beat)

    def event(self, kind: RunEventKind, data: dict[str, object]) -> None:
        """Append an event."""
        if self.rank == 0:
            event = EventRecord(time=time.time(), kind=kind, step=self.step, data=data)
            append_record(self.run.events, event)

    def fail(self, error: Exception) -> None:
        """Write the failure and the outcome, unless another rank of the node did."""
        reason = FailureReason.TRAINER_ERROR
        if isinstance(error, OutrunError | ValueError):
            reason = FailureReason.CHECKPOINT_ERROR
        text = "".join(traceback.format_exception(error))
        message = str(error) or type(error).__name__
        failure = Failure(
            reason=reason, message=message, rank=self.rank, step=self.step, traceback=text
        )
        create_record(self.run.error, failure)
        outcome = Outcome(
            outcome="failed", step=self.step, checkpoint_id=self.checkpoint_id, failure=failure
        )
        create_record(self.run.outcome, outcome)


def main() -> int:
    """Run a rank; return 0 if the attempt succeeded or was stopped."""
    if sys.argv[1] == "check":
        return 0
    faulthandler.register(STACKS_SIGNAL, all_threads=True, chain=False)
    attempt = Attempt(Path(sys.argv[1]))
    try:
        outcome = attempt.train()
    except Exception as error:  # noqa: BLE001 - every failure is recorded
        traceback.print_exception(error)
        attempt.fail(error)
        return 1
    if attempt.leads_node:
        create_record(attempt.run.outcome, outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
