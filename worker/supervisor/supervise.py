"""Owns one torchrun: checks, starts, watches and ends it, and sees to it that the server hears."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainyard.base.file_limit import raise_file_limit
from trainyard.protocol.attempt import AttemptSpec
from trainyard.run.atomic import replace_file
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.record_files import write_exit
from trainyard.run.records import ExitRecord
from trainyard.spec.job import parse_job_spec
from worker.launchers.torchrun import (
    TRAINER,
    Share,
    code_of,
    port_is_taken,
    rank_environment,
    tail,
    torchrun_command,
)
from worker.node.cgroup import end_cgroup, make_cgroup, remove_cgroup
from worker.node.files import read_record
from worker.node.host_memory import MemoryWatch
from worker.node.node_store import LaunchRecord, WorkerRun
from worker.node.process_identity import identify
from worker.node.process_tree import (
    become_subreaper,
    end_descendants,
    end_user,
    reap,
    spawn_tied,
)
from worker.node.rank_wrapper import CGROUP
from worker.supervisor.exit_classification import Findings, judge, last_words
from worker.supervisor.hang import HangWatch
from worker.supervisor.orders import Orders
from worker.supervisor.ranks import RankWatch, is_abnormal
from worker.supervisor.reporter import Reporter
from worker.supervisor.spool import Spool

logger = logging.getLogger(__name__)

GRACE_SECONDS = 3.0
"""Time that the others get to write their errors after the first abnormal end."""
LEAVING_SECONDS = 10.0
"""Time that torchrun gets to leave when its ranks have."""
STACKS_SECONDS = 1.0
"""Time that ranks get to write their stacks; a handler of the C library does it at once."""
CHECK_SECONDS = 600.0
LONG_LOOK_SECONDS, SHORT_LOOK_SECONDS = 0.25, 0.02


class Supervisor:
    """The parent of one node's share of one attempt.

    Use it in a process of its own, from the main thread: it becomes a subreaper, reaps every child
    and ends every descendant.
    """

    def __init__(self, run: WorkerRun, *, trainer: Sequence[str] = TRAINER) -> None:
        launch = read_record(run.launch, LaunchRecord)
        if launch is None:
            raise ValueError(f"{run.launch} is missing or no launch record")
        identity = identify(os.getpid())
        assert identity is not None
        self._run = run
        self._launch = launch
        self._trainer = trainer
        self._spec = parse_job_spec(Path(run.spec).read_bytes())
        attempt = AttemptSpec.model_validate_json(Path(run.attempt).read_bytes())
        self._share = Share.of(attempt, launch)
        self._environment = rank_environment(
            attempt.overrides.apply(self._spec), launch, home=run.home, inherited=os.environ
        )
        self._watch = RankWatch(run, self._share.ranks)
        self._memory = MemoryWatch()
        self._statuses: dict[int, int] = {}
        self._orders = Orders(run, leads=launch.node_rank == 0)
        self._reporter = Reporter(
            run,
            launch,
            identity=identity,
            orders=self._orders,
            spool=Spool(run, ranks=self._share.ranks),
            rank_pids=lambda: self._watch.pids,
        )
        replace_file(run.identity, identity.model_dump_json() + "\n")

    def supervise(self) -> ExitRecord:
        """Run the node's share to its end, and report until the server knows how it ended."""
        become_subreaper()
        raise_file_limit()
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._orders.preempt())
        reporting = threading.Thread(target=self._reporter.report_until_over, name="reporter")
        reporting.start()
        cgroup = make_cgroup(self._launch.attempt_id, node=self._launch.node)
        if cgroup is not None:
            self._environment[CGROUP] = str(cgroup)
        fault: Failure | None = None
        try:
            self._make_logs()
            fault = self._check() or self._train()
        except Exception as error:
            logger.exception("supervising failed")
            fault = self._fault(FailureReason.LAUNCH_ERROR, f"the supervisor failed: {error!r}")
        finally:
            if cgroup is not None:
                end_cgroup(cgroup)
            self._statuses |= end_descendants()
            end_user(self._launch.user)
            if cgroup is not None:
                remove_cgroup(cgroup)
        record = self._record(fault)
        self._reporter.finish(record)
        reporting.join()
        return record

    @property
    def over(self) -> bool:
        """Whether nobody needs to see to the attempt any more on this node."""
        return self._reporter.delivered or self._orders.outrun

    def _record(self, fault: Failure | None) -> ExitRecord:
        outcome, error = last_words(self._run)
        self._watch.look()
        self._watch.close()
        findings = Findings(
            node=self._launch.node,
            desired=self._orders.desired,
            preempted=self._orders.preempted,
            outrun=self._orders.outrun,
            fault=fault,
            ranks=self._watch.exits,
            started=self._watch.started,
            memory_ran_out=self._memory.ran_out,
            outcome=outcome,
            error=error,
            flight_record=_first_file(Path(self._run.flight_recorder)),
        )
        record = judge(findings, time=time.time())
        logger.info("%s: %s", record.outcome, record.failure.message if record.failure else "")
        try:
            write_exit(self._run, record)
        except OSError:
            logger.exception("%s could not be written", self._run.exit)
        return record

    def _make_logs(self) -> None:
        """Make the logs of ranks of another user, who then cannot put anything in their place."""
        if (user := self._launch.user) is None:
            return
        end_user(user)  # of an earlier attempt nothing is left; a new one is to begin alone
        for rank in self._share.ranks:
            log = Path(self._run.log(rank))
            log.touch(exist_ok=False)
            user.give(log, 0o660)

    # ---- the check ------------------------------------------------------------------------------

    def _check(self) -> Failure | None:
        """Look at spec, places and input before any rank starts; return what is wrong."""
        if not self._launch.allow_code and (refused := code_of(self._spec)):
            return self._fault(FailureReason.NOT_ALLOWED, refused)
        log = Path(self._run.log(self._share.ranks[0]))
        command = [*self._trainer, "check", str(self._run.root)]
        user = self._launch.user
        pid = spawn_tied(command, environment=self._environment, output=log, user=user)
        deadline = time.monotonic() + CHECK_SECONDS
        pidfd = os.pidfd_open(pid)
        try:
            while not self._has_ended(pid) and not self._orders.leave:
                if time.monotonic() > deadline:
                    message = f"looking at the input took longer than {CHECK_SECONDS:.0f} s"
                    return self._fault(FailureReason.DATA_ERROR, message)
                _sleep(LONG_LOOK_SECONDS, wake_fd=self._orders.wake_fd, pidfds=[pidfd])
        finally:
            os.close(pidfd)
        status = self._statuses.get(pid, 0)
        if status == 0 or self._orders.leave:
            return None
        _, error = last_words(self._run)
        if error is not None:
            return replace(error, rank=None, node=self._launch.node)
        message = f"the check of spec and input ended with status {status}"
        return self._fault(FailureReason.DATA_ERROR, message, said=tail(log))

    # ---- the ranks ------------------------------------------------------------------------------

    def _train(self) -> Failure | None:
        """Run torchrun until it ends or must be ended; return what the supervisor found wrong."""
        if self._orders.leave:
            return None
        torchrun = spawn_tied(
            torchrun_command(self._run, self._launch, self._share, self._trainer),
            environment=self._environment,
            output=self._run.torchrun_log,
            user=self._launch.user,
        )
        hang = HangWatch(
            Path(self._run.heartbeat),
            hang_seconds=self._spec.guard.hang_seconds,
            owner=self._run.writer,
        )
        leaving, asked = _Leaving(), False
        while not self._orders.leave_now:
            self._watch.look()
            failed = any(map(is_abnormal, self._watch.exits))
            if failed and not asked:
                asked = True
                self._ask_who_is_stuck()
            self._memory.look(failed=failed)
            if leaving.is_over(
                failed=failed,
                ranks_over=self._watch.over,
                torchrun_ended=self._has_ended(torchrun),
                settled=not self._watch.unsettled,
            ):
                break
            if not failed and (silence := hang.silence()):
                return self._hang(silence)
            _sleep(
                SHORT_LOOK_SECONDS if self._watch.unsettled else LONG_LOOK_SECONDS,
                wake_fd=self._orders.wake_fd,
                pidfds=self._watch.pidfds,
            )
        status = self._statuses.get(torchrun)
        return self._never_started(status) or self._torchrun_killed(torchrun, status)

    def _hang(self, silence: str) -> Failure:
        """Let the ranks write where they are before they are ended."""
        if not (asked := self._watch.ask_for_stacks()):
            return self._fault(FailureReason.HANG, silence)
        time.sleep(STACKS_SECONDS)
        message = f"{silence}; the logs of ranks {asked} end with what their threads were doing"
        fault = self._fault(FailureReason.HANG, message)
        return replace(fault, path=str(self._run.logs))

    def _ask_who_is_stuck(self) -> None:
        """Have the others say where they are when a rank has failed by waiting for them."""
        _, error = last_words(self._run)
        if error is not None and error.reason == FailureReason.HANG:
            self._watch.ask_for_stacks()

    def _never_started(self, status: int | None) -> Failure | None:
        """Return why torchrun ended before it started a rank, if that is what happened."""
        if self._watch.started or self._orders.leave:
            return None
        said = tail(self._run.torchrun_log)
        if self._share.nodes > 1 and self._share.node_rank == 0 and port_is_taken(self._launch):
            message = f"{self._launch.rendezvous} is taken; the next attempt meets at another port"
            fault = self._fault(FailureReason.LAUNCH_ERROR, message, said=said)
            return replace(fault, free_retry=True)
        message = f"torchrun ended (status {status}) before any rank began"
        return self._fault(FailureReason.LAUNCH_ERROR, message, said=said)

    def _torchrun_killed(self, pid: int, status: int | None) -> Failure | None:
        """Return that torchrun was ended by a signal, if that is why its ranks are gone.

        They end with it, and so do their guards, so that no end of a rank was seen.
        """
        seen = [end for end in self._watch.exits if end.exit_code or end.signal]
        if status is None or status >= 0 or seen or self._orders.leave_now:
            return None
        name = signal.Signals(-status).name
        message = f"torchrun itself (pid {pid}) was ended by {name}, and its ranks with it"
        said = tail(self._run.torchrun_log)
        fault = self._fault(FailureReason.LAUNCH_ERROR, message, said=said)
        return replace(fault, signal=name)

    def _has_ended(self, pid: int) -> bool:
        self._statuses |= reap()
        return pid in self._statuses

    def _fault(self, reason: FailureReason, message: str, *, said: str = "") -> Failure:
        return Failure(
            reason=reason, message=message, node=self._launch.node, traceback=said or None
        )


class _Leaving:
    """Grants time: to other ranks after a failure, to torchrun when its ranks have left."""

    def __init__(self) -> None:
        self._failed_at: float | None = None
        self._over_at: float | None = None
        self._alone_at: float | None = None

    def is_over(
        self, *, failed: bool, ranks_over: bool, torchrun_ended: bool, settled: bool
    ) -> bool:
        now = time.monotonic()
        if failed and self._failed_at is None:
            self._failed_at = now
        if ranks_over and self._over_at is None:
            self._over_at = now
        if torchrun_ended and self._alone_at is None:
            self._alone_at = now
        return (
            (torchrun_ended and (settled or _since(self._alone_at, now) > GRACE_SECONDS))
            or (failed and (ranks_over or _since(self._failed_at, now) > GRACE_SECONDS))
            or _since(self._over_at, now) > LEAVING_SECONDS
        )


def _first_file(folder: Path) -> str | None:
    return next((str(path) for path in sorted(folder.glob("*"))), None)


def _since(then: float | None, now: float) -> float:
    return 0.0 if then is None else now - then


def _sleep(seconds: float, *, wake_fd: int, pidfds: Sequence[int]) -> None:
    """Sleep until an order comes or a process ends, but no longer than so many seconds."""
    poll = select.poll()
    for fd in (wake_fd, *pidfds):
        poll.register(fd, select.POLLIN)
    for fd, _ in poll.poll(seconds * 1000):
        if fd == wake_fd:
            os.eventfd_read(fd)
