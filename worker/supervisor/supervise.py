"""Supervises one share of an attempt: checks, starts, watches, ends and reports its ranks."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trainyard.base.file_limit import raise_file_limit
from trainyard.run.atomic import replace_file
from trainyard.run.directory import Phase
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.records import ExitRecord, Heartbeat
from worker.artifacts.uploader import ArtifactUploader
from worker.launchers.base import LauncherFactory, Observation, Share
from worker.launchers.program_disk import program_disk
from worker.launchers.rank_environment import code_of
from worker.masking import forget_secrets
from worker.node.files import read_record, tail
from worker.node.host_memory import MemoryWatch
from worker.node.kernel_store import KernelStore
from worker.node.node_store import AttemptLock, LaunchRecord, NodeStore, WorkerRun, identity_of
from worker.node.process_identity import own_identity
from worker.node.process_tree import NotEndedError, become_subreaper, end_user
from worker.node.rank_wrapper import forbid_core_dumps
from worker.node.users import RankUser
from worker.run_as.storage_check import closed_storage
from worker.supervisor.event_tail import event_tail_of
from worker.supervisor.exit_classification import (
    Findings,
    first_failure,
    last_words,
    signal_of,
)
from worker.supervisor.hang import HangWatch, PositionWatch, request_stacks
from worker.supervisor.launch_check import InputCheck, unusable_devices, without_devices
from worker.supervisor.orders import Leaving, Orders, StopOfProgram
from worker.supervisor.orphan_report import report_orphan
from worker.supervisor.reporter import Reporter
from worker.supervisor.shell_runs import ShellRuns
from worker.supervisor.spool import Spool

logger = logging.getLogger(__name__)

LONG_POLL_SECONDS, SHORT_POLL_SECONDS = 0.25, 0.02


class Supervisor:
    """The supervisor of one share of an attempt, and the parent of its processes.

    Use it in its own process, from the main thread, because it becomes a subreaper, reaps every
    child and ends every descendant.
    """

    def __init__(self, run: WorkerRun, launcher: LauncherFactory) -> None:
        """Read the run directory, and write this process' identity to it; nothing starts yet.

        Raises:
            OSError, ValueError: a file in the run directory is missing, damaged or not writable.
        """
        identity = own_identity()
        self._run = run
        self._share = share = Share.read(run)
        self._launch, self._spec = share.launch, share.spec
        self._launcher = launcher(share)
        self._seen: Observation = self._launcher.observe()
        self._memory = MemoryWatch()
        self._hang_watch = HangWatch(
            run.heartbeat,
            hang_seconds=self._spec.guard.hang_seconds,
            owner=run.writer,
            needs_heartbeat=share.runs_program,
        )
        program = self._spec.program
        self._began_at: float | None = None  # monotonic time
        self._stop = None if program is None else StopOfProgram(run, program.stop_grace_seconds)
        self._positions = PositionWatch(run)
        self._disk = program_disk(run, share)
        self._orders = Orders(
            run,
            leads=share.launch.node_rank == 0,
            deadline=NodeStore(Path(share.launch.data_dir)).deadline,
        )
        self._kernels = KernelStore(run, share.attempt.kernel_cache)
        self._shells = ShellRuns(share, before_start=self._kernels.keep_none)
        grace, mask = share.stop_grace_seconds, share.mask
        if mask.left_out:
            logger.warning("%d forms of lines of secrets are not masked", mask.left_out)
        self._artifacts = ArtifactUploader(share, lambda: self._orders.uploads_until(grace))
        self._spool = Spool(
            run,
            ranks=share.ranks,
            processes=share.processes_of_program,
            event_tail=event_tail_of(share),
            artifacts=self._artifacts,
            mask=mask,
        )
        self._reporter = Reporter(
            run,
            share.launch,
            identity=identity,
            orders=self._orders,
            spool=self._spool,
            mask=mask,
            rank_pids=lambda: dict(self._seen.pids),
            sign_of_life=self._sign_of_program,
        )
        replace_file(run.identity, identity.model_dump_json() + "\n")

    def supervise(self) -> ExitRecord:
        """Run the node's share to its end, and report until the server has the exit."""
        become_subreaper()  # before the first child, whose daemons could otherwise escape
        raise_file_limit()
        signal.signal(signal.SIGTERM, lambda *_: self._orders.preempt())
        reporting = threading.Thread(target=self._reporter.report_until_over, name="reporter")
        uploading = threading.Thread(target=self._artifacts.upload_until_over, name="uploader")
        reporting.start()
        uploading.start()
        fault: Failure | None = None
        try:
            self._make_logs()
            if self._disk is not None:
                self._disk.start()
            check = self._prepare()
            fault = check if isinstance(check, Failure) else self._launch_ranks(check)
        except Exception as error:
            logger.exception("supervising failed")
            fault = self._fault(FailureReason.LAUNCH_ERROR, f"the supervisor failed: {error!r}")
            # The preparation also reads the job's files, so an error does not count against the
            # node.
            fault = replace(fault, node_at_fault=not self._share.runs_program)
        finally:
            self._launcher.stop()
            self._shells.close()
            self._kernels.close()
            self._make_room()
        self._artifacts.finish()
        record = self._reporter.finish(self._findings(fault))
        reporting.join()
        self._artifacts.stop()
        uploading.join()
        return record

    @property
    def over(self) -> bool:
        """Whether the attempt no longer needs a process on this node."""
        return self._reporter.delivered or self._orders.outrun

    def _sign_of_program(self) -> Heartbeat | None:
        """Return a heartbeat for a program, from the start of its last rank to the end of all."""
        seen = self._seen
        if self._stop is None or not seen.pidfds or len(seen.pids) < seen.ranks:
            return None
        return Heartbeat(phase=Phase.TRAINING, step=0, time=time.time())

    def _tail(self, rank: int) -> str | None:
        return tail(self._run.log(rank), mask=self._share.mask) or None

    def _findings(self, fault: Failure | None) -> Findings:
        self._seen = self._launcher.observe()
        of_program = self._share.runs_program
        first = first_failure(self._seen.exits)
        if first is not None and signal_of(first, of_program=of_program) == "SIGTERM":
            self._orders.leaves_soon()
        outcome, error = last_words(self._run, of_program=of_program)
        failing = None if first is None or not of_program else first.rank
        return Findings(
            node=self._launch.node,
            desired=self._orders.desired,
            preempted=self._orders.preempted,
            outrun=self._orders.outrun,
            fault=fault,
            ranks=self._seen.exits,
            started=self._seen.started,
            memory_ran_out=self._memory.ran_out,
            outcome=outcome,
            error=error,
            positions=self._positions.positions,
            false_alarms=self._hang_watch.false_alarms,
            unreported_commit=self._run.committing.exists(),
            flight_record=next(map(str, sorted(self._run.flight_recorder.glob("*"))), None),
            program_ranks=self._seen.ranks if of_program else None,
            stopped_in_time=self._stop is not None and self._stop.in_time,
            output=None if failing is None else self._tail(failing),
            seconds_unheard=self._seconds_unheard(),
        )

    def _seconds_unheard(self) -> float | None:
        """Return the run time of the ranks; None after a heartbeat or metric of any rank."""
        of_ranks = self._run.rank_metrics.glob("*.jsonl")
        records = (self._run.heartbeat, self._run.metrics, *of_ranks)
        if self._began_at is None or any(path.exists() for path in records):
            return None
        return time.monotonic() - self._began_at

    def _make_logs(self) -> None:
        """Create the logs if ranks run as another user, so that they cannot replace the files."""
        if (user := self._launch.user) is None:
            return
        end_user(user)  # an earlier attempt with this user id may have left a process
        for rank in self._share.ranks:
            log = self._run.log(rank)
            log.touch(exist_ok=False)
            user.give(log, 0o660)

    def _excess(self) -> Failure | None:
        excess = None if self._disk is None else self._disk.excess
        return None if excess is None else self._fault(FailureReason.DISK_LIMIT, excess)

    def _make_room(self) -> None:
        """End the folder watch; on a nearly full disk, empty a run directory above its limit."""
        if self._disk is not None:
            self._disk.stop()
            self._disk.make_room(self._spool.paths, self._run.records(self._share.ranks))

    # ---- the checks -----------------------------------------------------------------------------

    def _prepare(self) -> Sequence[str] | Failure:
        """Check the launch; return the command that checks the input, or a failure."""
        # Checked here, so that no launcher can omit the check.
        if not self._launch.allow_code and (refused := code_of(self._spec)):
            return self._fault(FailureReason.NOT_ALLOWED, refused)
        if closed := closed_storage(self._share):
            return self._fault(FailureReason.NOT_ALLOWED, closed)
        if unusable := unusable_devices(self._launch):
            self._reporter.withhold(unusable)
            return without_devices(self._launch.node, unusable)
        checked = self._launcher.prepare()
        self._share.admit_user()
        # The signal that ends this node may have ended a child process of the check too.
        return () if isinstance(checked, Failure) and self._orders.leave else checked

    def _launch_ranks(self, command: Sequence[str]) -> Failure | None:
        """Run check and ranks, in sequence or concurrently; return the supervisor's own finding."""
        alongside = self._launcher.checks_alongside
        if command and not alongside and (wrong := self._check_before(command)):
            return wrong
        if self._orders.leave:
            return None
        self._began_at = time.monotonic()
        pid = self._launcher.start(check=command if alongside else ())
        if pid is None:
            return self._train(None)
        check = InputCheck(self._share, pid)
        try:
            fault = self._train(check)
            # A refusal by the check is the cause, even if the ranks met the error first.
            while not (check.over or self._orders.leave):
                _sleep(LONG_POLL_SECONDS, wake_fd=self._orders.wake_fd, pidfds=[check.pidfd])
            return check.refusal(self._orders) or fault
        finally:
            check.close()

    def _check_before(self, command: Sequence[str]) -> Failure | None:
        """Run the check until it ends or the attempt must leave; return the check's failure."""
        log, processes = self._run.log(self._share.ranks[0]), self._share.processes
        pid = processes.spawn(command, environment=self._share.environment, output=log)
        check = InputCheck(self._share, pid)
        try:
            while not check.over and not self._orders.leave:
                if (too_much := self._excess()) is not None:
                    return too_much
                _sleep(LONG_POLL_SECONDS, wake_fd=self._orders.wake_fd, pidfds=[check.pidfd])
        finally:
            check.close()
        return None if self._orders.leave else check.refusal(self._orders)

    # ---- the ranks ------------------------------------------------------------------------------

    def _train(self, check: InputCheck | None) -> Failure | None:
        """Watch the ranks until they end or must end; return the supervisor's own finding."""
        self._hang_watch.restart()
        leaving, stacks_requested = Leaving(), False
        while not self._orders.leave_now:
            self._seen = seen = self._launcher.observe()
            if seen.failed and not stacks_requested:
                stacks_requested = True
                self._locate_waiting_ranks(seen)
            self._memory.poll(failed=seen.failed)
            self._kernels.poll()
            self._shells.poll(self._orders.shells)
            over = self._stop.is_over(seen) if self._stop and self._orders.leave else None
            if leaving.is_over(seen) if over is None else over:
                break
            if wrong := self._excess() or (check.refusal(self._orders) if check else None):
                return wrong
            if not seen.failed:
                silence = self._hang_watch.silence()
                self._positions.follow(seen, suspected=self._hang_watch.suspected)
                if silence is not None:
                    return self._hang(silence, seen)
            checking = () if check is None or check.over else (check.pidfd,)
            _sleep(
                LONG_POLL_SECONDS if seen.settled else SHORT_POLL_SECONDS,
                wake_fd=self._orders.wake_fd,
                pidfds=(*seen.pidfds.values(), *self._shells.pidfds, *checking),
            )
        return self._launch_failure()

    def _launch_failure(self) -> Failure | None:
        """Return the launcher's own failure, or None if the ranks had to end anyway."""
        ordered = self._orders.leave_now or (self._orders.leave and not self._seen.started)
        return None if ordered else self._seen.failure

    def _hang(self, silence: str, seen: Observation) -> Failure:
        """Let the ranks write their positions before their end; return the failure."""
        if not (signalled := self._positions.complete(seen)):
            return self._fault(FailureReason.HANG, silence)
        message = f"{silence}; the logs of ranks {signalled} end with what their threads were doing"
        fault = self._fault(FailureReason.HANG, message)
        return replace(fault, path=str(self._run.logs))

    def _locate_waiting_ranks(self, seen: Observation) -> None:
        """If a rank failed in a wait for other ranks, let the other ranks write their stacks."""
        _, error = last_words(self._run, of_program=self._share.runs_program)
        if error is not None and error.reason == FailureReason.HANG:
            request_stacks(seen)

    def _fault(self, reason: FailureReason, message: str) -> Failure:
        return Failure(reason=reason, message=message, node=self._launch.node)


def run_detached(folder: Path, lock_fd: int, launcher: LauncherFactory) -> None:
    """Supervise the attempt of a run directory, or report its end.

    An attempt gets no second supervisor. If an earlier supervisor left its identity, this process
    only reports the end.

    Args:
        folder: run directory.
        lock_fd: descriptor of the attempt's lock, already taken.
        launcher: creates the launcher of the ranks.
    """
    os.set_inheritable(lock_fd, False)  # so that no rank keeps the lock of a dead supervisor
    forbid_core_dumps()  # this process reads the secrets of the job
    run = WorkerRun(folder)
    with AttemptLock.inherited(lock_fd) as lock:
        try:
            if (user := RankUser.of_run(run.root)) is not None:
                user.join_group()
            over = _supervise_or_report(run, launcher)
        except NotEndedError:
            # The process still holds the slots, so the attempt is neither reported as gone nor
            # forgotten.
            logger.exception("the attempt is not over")
            over = False
        except Exception:
            # A later process would fail too, so the worker reports that the attempt is gone.
            logger.exception("the attempt cannot be reported")
            over = True
        if over:
            with suppress(OSError):  # `run_days` may have removed the run directory
                replace_file(run.over, "", durable=False)  # a rank may have put a link there
            with suppress(OSError):  # without a recorded exit the attempt is still open
                if (user := RankUser.of_run(run.root)) is not None:
                    user.close(run.root)
            forget_secrets(run)
            lock.forget()


def _supervise_or_report(run: WorkerRun, launcher: LauncherFactory) -> bool:
    """Return whether the attempt no longer needs a process on this node."""
    launch = read_record(run.launch, LaunchRecord)
    if launch is None:
        # No process can report the attempt. The worker ends processes with the attempt's marks and
        # reports the attempt as gone.
        logger.error("%s is missing or no launch record", run.launch)
        if (user := RankUser.of_run(run.root)) is not None:
            end_user(user)
        return True
    predecessor = identity_of(run)
    if predecessor is not None:
        return report_orphan(run, launch, predecessor=predecessor, launcher=launcher)
    try:
        supervisor = Supervisor(run, launcher)
    except (OSError, ValueError):
        logger.exception("the attempt cannot be launched")
        return report_orphan(run, launch, predecessor=own_identity(), launcher=launcher)
    supervisor.supervise()
    return supervisor.over


def _sleep(seconds: float, *, wake_fd: int, pidfds: Iterable[int]) -> None:
    """Sleep until an order arrives or a process ends, for at most `seconds`."""
    poll = select.poll()
    for fd in (wake_fd, *pidfds):
        poll.register(fd, select.POLLIN)
    for fd, _ in poll.poll(seconds * 1000):
        if fd == wake_fd:
            os.eventfd_read(fd)
