"""Writes the records of a run except metrics: events, heartbeat, answers, outcome and error."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import replace

from trainer.errors import (
    CheckpointError,
    GuardError,
    OutOfMemoryError,
    RunError,
    is_out_of_memory,
)
from trainyard.protocol.manifest import Manifest, SaveFailed
from trainyard.protocol.record_parser import parse_record
from trainyard.run.control_files import write_answer
from trainyard.run.directory import Phase, RunDirectory
from trainyard.run.failures import REMEDIES, Failure, FailureReason, Remedy
from trainyard.run.record_base import to_plain
from trainyard.run.record_files import append_record, create_record, replace_record
from trainyard.run.records import (
    EventRecord,
    Heartbeat,
    Outcome,
    Provenance,
    RequestAnswer,
    RunEventKind,
)

HEARTBEAT_SECONDS = 1.0
TRACEBACK_CHARACTERS = 20_000
TIMED_OUT = (
    "Timed out waiting",
    "wait timeout after",
    "Watchdog caught collective operation timeout",
)
"""Parts of the messages that gloo, torch's store and NCCL's watchdog write after a timeout."""
LAUNCH_REMEDY = Remedy(
    text="Change what the message names: the spec, by a new job or a resume, or packages, drivers "
    "or roots of the node; then resume. The log of the rank has the rest."
)
"""Remedy if a rank or a check refuses the launch; the default remedy is for failures of nodes."""
NO_ANSWER = "another rank did not answer (the ranks' logs end with what their threads were doing)"


class RunWriter:
    """Writes the records of a run; every rank calls every method, and one rank writes.

    Global rank 0 appends lines, each line by one write. The first rank of each node replaces files
    atomically. Only a failing rank calls `fail`, which writes on every rank.
    """

    def __init__(self, directory: RunDirectory, *, rank: int, local_rank: int) -> None:
        self._directory = directory
        self._rank = rank
        self._leads = rank == 0
        self._leads_node = local_rank == 0
        self._phase = Phase.STARTING
        self._last_beat = 0.0
        self.step = 0
        """Number of completed optimizer steps."""
        self.checkpoint_id: str | None = None
        """Id of the last committed or loaded checkpoint; None before the first one."""

    def enter(self, phase: Phase) -> None:
        """Start a phase: write a heartbeat immediately, and an event."""
        self.beat(phase)
        self.event("phase", {"phase": phase.value})

    def beat(self, phase: Phase | None = None) -> None:
        """Write a heartbeat: immediately in a new phase, otherwise at most once per second."""
        now = time.monotonic()
        unchanged = phase is None or phase == self._phase
        if not self._leads_node or (unchanged and now - self._last_beat < HEARTBEAT_SECONDS):
            return
        self._phase = phase or self._phase
        self._last_beat = now
        heartbeat = Heartbeat(phase=self._phase, step=self.step, time=time.time())
        replace_record(self._directory.heartbeat, heartbeat)

    def event(self, kind: RunEventKind, data: dict[str, object]) -> None:
        """Append an event of the attempt."""
        if self._leads:
            record = EventRecord(time=time.time(), kind=kind, step=self.step, data=data)
            append_record(self._directory.events, record)

    def save_begun(self) -> None:
        """Create the file `committing`; it exists until the save is committed or has failed."""
        if self._leads:
            self._directory.committing.touch()

    def committed(self, manifest: Manifest) -> None:
        """Append the event of a commit."""
        self.checkpoint_id = manifest.checkpoint_id
        self.event("checkpoint_committed", manifest.model_dump(mode="json"))
        self._save_over()

    def save_failed(self, failure: SaveFailed) -> None:
        """Append the event for a failed save that will be retried."""
        self.event("save_failed", failure.model_dump(mode="json"))
        self._save_over()

    def _save_over(self) -> None:
        if self._leads:
            self._directory.committing.unlink(missing_ok=True)

    def answer(self, request_id: str, answer: RequestAnswer) -> None:
        """Answer a request, and append the answer to the events."""
        if self._leads:
            write_answer(self._directory, request_id, answer)
            self.event("request_answered", {"request_id": request_id, **to_plain(answer)})

    def provenance(self, describe: Callable[[], Provenance]) -> None:
        """Write the provenance of this node."""
        if self._leads_node:
            replace_record(self._directory.provenance, describe())

    def finish(self, outcome: Outcome) -> None:
        """Write the outcome of an attempt that did not fail."""
        if self._leads_node:
            create_record(self._directory.outcome, outcome)

    def fail(self, error: BaseException) -> Failure:
        """Write the failure, unless another rank on this node has already written one.

        The first failure is the cause; later failures are consequences, such as lost connections.

        Returns:
            The failure of this rank, whether it was written or not.
        """
        own = failure = failure_of(error, rank=self._rank, step=self.step)
        if own.reason == FailureReason.HANG and self._directory.logs.is_dir():
            own = failure = replace(own, path=str(self._directory.logs))
        if not create_record(self._directory.error, failure):
            # The first rank may be killed between its two files, so write the outcome here too.
            failure = parse_record(Failure, self._directory.error.read_bytes())
        outcome = Outcome(
            outcome="failed", step=self.step, checkpoint_id=self.checkpoint_id, failure=failure
        )
        create_record(self._directory.outcome, outcome)
        return own


def write_check_error(directory: RunDirectory, error: BaseException) -> Failure:
    """Write and return a check's failure, in a file of its own because ranks may fail meanwhile."""
    failure = failure_of(error, rank=None, step=None)
    replace_record(directory.check_error, failure)
    return failure


def failure_of(error: BaseException, *, rank: int | None, step: int | None) -> Failure:
    """Return the typed failure for an exception."""
    text = "".join(traceback.format_exception(error))
    reason, message = _reason(error), str(error) or type(error).__name__
    if reason == FailureReason.HANG:
        message = f"{NO_ANSWER}: {message}"
    return Failure(
        reason=reason,
        message=message,
        rank=rank,
        step=step,
        path=error.path if isinstance(error, RunError) else None,
        remedy=_remedy(error, reason),
        metric=error.metric if isinstance(error, GuardError) else None,
        traceback=text[-TRACEBACK_CHARACTERS:],
        bad_window=error.bad_window if isinstance(error, GuardError) else None,
        memory=error.memory if isinstance(error, OutOfMemoryError) else None,
        load=error.load if isinstance(error, CheckpointError) else None,
    )


def _reason(error: BaseException) -> FailureReason:
    if isinstance(error, RunError):
        return error.reason
    if is_out_of_memory(error):
        return FailureReason.OUT_OF_MEMORY
    timed_out = any(words in str(error) for words in TIMED_OUT)
    return FailureReason.HANG if timed_out else FailureReason.TRAINER_ERROR


def _remedy(error: BaseException, reason: FailureReason) -> Remedy:
    text = error.remedy if isinstance(error, RunError) else None
    usual = LAUNCH_REMEDY if reason == FailureReason.LAUNCH_ERROR else REMEDIES[reason]
    return usual if text is None else replace(usual, text=text)
