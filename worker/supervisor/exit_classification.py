"""Classifies how the node's share of an attempt ended, from all observations."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from signal import Signals
from typing import Literal

from trainyard.base.redaction import OutputMask
from trainyard.protocol.states import DesiredState
from trainyard.run.atomic import replace_file
from trainyard.run.failures import FREE_RETRIES, REMEDIES, Failure, FailureReason
from trainyard.run.record_base import to_json
from trainyard.run.records import ExitRecord, Outcome, RankExit, RankPosition
from worker.masking import masked_value
from worker.node.files import read_record
from worker.node.node_store import WorkerRun

logger = logging.getLogger(__name__)

Verdict = Literal["succeeded", "stopped", "failed", "cancelled"]


START_SECONDS = 300.0
"""Maximum run time, in seconds, of a program whose failure may count as a failure to load. The time
is long because slow storage delays imports.
"""
_ERROR = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception))(?::.*)?$", re.MULTILINE)
REASONS_OF_PROGRAMS = frozenset(
    {FailureReason.NON_FINITE_LOSS, FailureReason.LOSS_SPIKE, FailureReason.CHECKPOINT_ERROR}
)
"""Failure reasons that `trainyard.run` sets in a program's ranks."""
LOAD_ERRORS = frozenset(
    {"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError"}
)
"""Errors of Python for an invalid file or module; a retry with the same files would fail too."""
MISSING_LIBRARY = "cannot open shared object file"
"""Text of an ImportError that may not occur on another node, such as for a missing driver
library."""
PASSED_ON = frozenset(
    {
        *(Signals.SIGHUP, Signals.SIGINT, Signals.SIGQUIT, Signals.SIGTERM, Signals.SIGKILL),
        *(Signals.SIGILL, Signals.SIGTRAP, Signals.SIGABRT, Signals.SIGBUS, Signals.SIGFPE),
        *(Signals.SIGSEGV, Signals.SIGPIPE, Signals.SIGXCPU, Signals.SIGXFSZ),
    }
)
"""If a rank exits with 128 plus the number of one of these signals, this signal is considered to
have ended a child of the rank.
"""
SAVED_BY_PROGRAM = "what the program did since its last checkpoint is lost"
"""Part of a message. A program leaves no outcome, so only the catalog shows what the program saved
before its end.
"""


@dataclass(frozen=True)
class Findings:
    """The supervisor's observations, once every process of the attempt has ended."""

    node: str
    """Name of the node."""
    desired: DesiredState = DesiredState.RUN
    """Last desired state that the server ordered."""
    preempted: bool = False
    """Whether a preemption notice on the node ended the attempt."""
    outrun: bool = False
    """Whether the server refused a report because another attempt is current."""
    fault: Failure | None = None
    """Failure that the supervisor itself found, such as a failed check, a hang, or ranks that never
    started.
    """
    ranks: tuple[RankExit, ...] = ()
    """Exits of the ranks, ordered by time."""
    started: bool = False
    """Whether any rank started."""
    memory_ran_out: bool = False
    """Whether the kernel killed processes around the first rank's exit because memory ran out."""
    outcome: Outcome | None = None
    """Outcome that the trainer wrote."""
    error: Failure | None = None
    """Error of the rank that failed first on the node."""
    positions: tuple[RankPosition, ...] = ()
    """Positions of the ranks in a silence before the end; empty without a silence."""
    false_alarms: int = 0
    """Number of silences that ended with progress of the ranks."""
    unreported_commit: bool = False
    """Whether global rank 0 ended, or may have ended, between a commit and the commit's event."""
    flight_record: str | None = None
    """Path of the file that NCCL's watchdog wrote after a collective timed out."""
    program_ranks: int | None = None
    """Number of ranks if they run a program; None for the trainer."""
    stopped_in_time: bool = False
    """Whether a program got the order to stop before a rank failed and before all ranks ended."""
    output: str | None = None
    """Last output lines of the program's rank that failed first."""
    seconds_unheard: float | None = None
    """Run time, in seconds, of a program's ranks that have sent neither a heartbeat nor a metric.
    None after the first heartbeat or metric, or if unknown.
    """


def last_words(
    run: WorkerRun, *, of_program: bool = False
) -> tuple[Outcome | None, Failure | None]:
    """Return the outcome and the error that the ranks wrote, each None if missing.

    A job's code can write the error, so the error affects neither the node nor the budget of
    retries. A program's error becomes a `program_error`, unless it has a reason that
    `trainyard.run` sets.

    Args:
        run: run directory.
        of_program: whether the ranks run a program.
    """
    error = read_record(run.error, Failure, owner=run.writer)
    return (
        read_record(run.outcome, Outcome, owner=run.writer),
        None if error is None else without_claims(error, of_program=of_program),
    )


def without_claims(error: Failure, *, of_program: bool) -> Failure:
    """Return a rank's error without the fields that only the worker or the server may set."""
    plain = replace(
        error, node=None, node_at_fault=False, free_retry=False, environment=None, signal=None
    )
    reason = FailureReason.TRAINER_ERROR
    if of_program:
        reason = FailureReason.PROGRAM_ERROR
        is_claim = plain.reason not in {reason, *REASONS_OF_PROGRAMS}
    else:
        is_claim = plain.reason in FREE_RETRIES
    if not is_claim:
        return plain
    return replace(plain, reason=reason, remedy=REMEDIES[reason])


def record_exit(
    run: WorkerRun, findings: Findings, *, mask: OutputMask | None = None
) -> ExitRecord:
    """Classify the end of the share, and write the result to `exit.json`.

    An earlier supervisor's record of the share is kept. `mask` masks the texts of the record.

    Returns:
        The exit record, even if the file could not be written, because the report does not need the
        file.
    """
    written = read_record(run.exit, ExitRecord)
    if written is not None:
        return written
    record = judge(findings, time=time.time())
    if mask:
        record = replace(masked_value(record, mask), outcome=record.outcome)
    logger.info("%s: %s", record.outcome, record.failure.message if record.failure else "")
    try:
        replace_file(run.exit, to_json(record, indent=1) + "\n")
    except OSError:
        logger.exception("%s could not be written", run.exit)
    return record


def judge(findings: Findings, *, time: float) -> ExitRecord:
    """Return the exit record for the findings.

    The trainer's outcome has priority over orders, except that a cancel overrides `stopped`. After
    its last save the trainer has succeeded or stopped, whatever its processes did later.
    """
    of_program = findings.program_ranks is not None
    outcome, failure = _judge_program(findings) if of_program else _judge(findings)
    return ExitRecord(
        outcome=outcome,
        failure=failure,
        ranks=findings.ranks,
        time=time,
        positions=findings.positions,
        false_alarms=findings.false_alarms,
        unreported_commit=findings.unreported_commit,
    )


def _judge(found: Findings) -> tuple[Verdict, Failure | None]:
    said = found.outcome.outcome if found.outcome else None
    if said == "succeeded":
        return "succeeded", None
    if found.outrun or found.desired is DesiredState.CANCEL:
        return "cancelled", None
    if said == "stopped":
        return _stopped(found)
    ordered = found.preempted or found.desired is DesiredState.STOP
    if ordered and not found.started and found.fault is None:
        return _stopped(found)  # no training exists that could be saved
    return "failed", found.fault or _failure_of_ranks(found)


def _judge_program(found: Findings) -> tuple[Verdict, Failure | None]:
    """Judge a program by orders and exit codes, because it need not write an outcome.

    After an order to stop in time, every exit counts as `stopped`, or as preempted if the node
    ends, because most ranks end by the signal.
    """
    if found.outrun or found.desired is DesiredState.CANCEL:
        return "cancelled", None
    if found.stopped_in_time or (
        (found.preempted or found.desired is DesiredState.STOP)
        and not found.started
        and found.fault is None
    ):
        return _stopped(found)
    ends = [end.exit_code for end in found.ranks]
    if ends == [0] * (found.program_ranks or 0) and ends:
        return "succeeded", None
    return "failed", found.fault or _failure_of_ranks(found)


def _stopped(found: Findings) -> tuple[Verdict, Failure | None]:
    if found.preempted and found.desired is DesiredState.RUN:
        return "failed", _preempted(found)
    return "stopped", None


def _preempted(found: Findings) -> Failure:
    step = found.outcome.step if found.outcome else None
    saved = found.outcome.checkpoint_id if found.outcome else None
    return Failure(
        reason=FailureReason.PREEMPTED,
        message=f"node {found.node} was told to end its work; "
        + (_last_save(saved, step) if found.program_ranks is None else SAVED_BY_PROGRAM),
        node=found.node,
        step=step,
    )


def _last_save(saved: str | None, step: int | None) -> str:
    if saved is None:
        return "nothing was saved"
    if step is not None and not saved.endswith(f".step-{step}"):
        return f"no save of step {step} fitted into the time; the last one is {saved}"
    return f"saved as {saved}"


def _failure_of_ranks(found: Findings) -> Failure:
    first = first_failure(found.ranks)
    if first is None:
        if found.error is not None:
            return replace(found.error, node=found.node)
        message = "the ranks ended without an outcome"
        return Failure(reason=_usual_reason(found), message=message, node=found.node)
    signal = signal_of(first, of_program=found.program_ranks is not None)
    if found.preempted and signal == "SIGTERM":
        return _preempted(found)
    # A killed rank is the cause of errors that other ranks wrote. Otherwise the rank that failed
    # first wrote the error.
    if signal is None and first.exit_code is not None and found.error is not None:
        exit_code = first.exit_code if found.error.rank == first.rank else None
        return replace(found.error, node=found.node, exit_code=exit_code)
    return _failure_of(first, found)


def first_failure(ranks: Iterable[RankExit]) -> RankExit | None:
    """Return the first exit without success; `ranks` must be ordered by time."""
    return next((end for end in ranks if end.exit_code != 0), None)


def signal_of(end: RankExit, *, of_program: bool) -> str | None:
    """Return the signal that ended a rank, or that ended the child whose exit code the rank
    returned.

    Shells and containers return 128 plus the signal number after a signal.
    """
    passed_on = (end.exit_code or 0) - 128
    if of_program and passed_on in PASSED_ON:
        return Signals(passed_on).name
    return end.signal


def _failure_of(first: RankExit, found: Findings) -> Failure:
    reason = _usual_reason(found)
    signal = signal_of(first, of_program=found.program_ranks is not None)
    if first.signal is not None:
        message = f"rank {first.rank} (pid {first.pid}) was ended by {first.signal}"
    elif first.exit_code is not None:
        message = f"rank {first.rank} (pid {first.pid}) ended with exit code {first.exit_code}"
        if signal is not None:
            message += f", by which a shell or a container reports {signal} of its command"
    else:
        message = f"rank {first.rank} (pid {first.pid}) is gone, and its exit was not observed"
    if (
        signal is None
        and first.exit_code is not None
        and (refused := _load_error(found)) is not None
    ):
        reason = FailureReason.PROGRAM_START_ERROR
        message += f" after {found.seconds_unheard:.0f} s, before any progress: {refused}"
    if signal == "SIGKILL" and found.memory_ran_out:
        reason = FailureReason.OUT_OF_MEMORY
        message += " while the kernel ended processes for want of memory"
    aborted = signal == "SIGABRT" and found.flight_record is not None
    if aborted:
        reason = FailureReason.HANG
        message += " by NCCL's watchdog: a collective had timed out or failed"
    return Failure(
        reason=reason,
        message=message,
        rank=first.rank,
        node=found.node,
        signal=first.signal,
        exit_code=first.exit_code,
        path=found.flight_record if aborted else None,
        traceback=found.output,
    )


def _usual_reason(found: Findings) -> FailureReason:
    of_trainer = found.program_ranks is None
    return FailureReason.TRAINER_ERROR if of_trainer else FailureReason.PROGRAM_ERROR


def _load_error(found: Findings) -> str | None:
    """Return the error of Python that prevented the start of a program; None without one."""
    seconds = found.seconds_unheard
    if found.program_ranks is None or seconds is None or seconds > START_SECONDS:
        return None
    errors = [*_ERROR.finditer(found.output or "")]
    if not errors or errors[-1][1] not in LOAD_ERRORS or MISSING_LIBRARY in errors[-1][0]:
        return None
    return errors[-1][0]
