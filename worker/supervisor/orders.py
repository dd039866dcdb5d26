"""Orders to an attempt, from the server and by signals; the main thread carries them out."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from trainyard.base.ids import is_id
from trainyard.protocol.shell_sessions.messages import ShellOrder
from trainyard.protocol.states import DesiredState
from trainyard.protocol.worker_messages import ReportReply
from trainyard.run.control_files import order_stop, post_request, stop_deadline
from trainyard.run.records import Heartbeat
from worker.launchers.base import Observation
from worker.node.files import read_record
from worker.node.node_store import WorkerRun

logger = logging.getLogger(__name__)

SIGNAL_SECONDS = 3.0
"""Maximum time, in seconds, between the first and the last SIGTERM to a node's processes."""
GRACE_SECONDS = 3.0
"""Time, in seconds, after the first abnormal exit for other ranks to write their errors."""
LEAVING_SECONDS = 10.0
"""Time, in seconds, for the launcher to exit after its ranks have ended."""
LAST_REPORT_SECONDS = 2.0
"""Time, in seconds, that is reserved for the report of the exit before the machine ends."""


class Orders:
    """Newest orders of one attempt; `wake_fd` becomes readable when they change."""

    def __init__(
        self, run: WorkerRun, *, leads: bool, deadline: Callable[[], float | None] = lambda: None
    ) -> None:
        self._run = run
        self._deadline = deadline
        self._leads = leads
        self.shells: tuple[ShellOrder, ...] = ()
        """People's commands in the last reply; the supervisor ignores those already started."""
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Eventfd, readable once an order has changed."""
        self.desired = DesiredState.RUN
        """Last desired state that the server ordered."""
        self.preempted = False
        """Whether a SIGTERM to the supervisor ended the attempt on this node."""
        self.outrun = False
        """Whether the server refused a report because another attempt is current."""
        self._hurried_at: float | None = None
        self._leaves_by: float | None = None  # monotonic time

    def uploads_until(self, grace_seconds: float) -> float | None:
        """Return the Unix time at which the wait for uploads ends; None without a limit.

        A cancel limits the wait, because other work needs the slots. A preemption notice limits the
        wait, because the machine ends.

        Args:
            grace_seconds: maximum wait, in seconds, after the first of these orders.
        """
        if self._hurried_at is None:
            return None
        end = self._deadline() if self.preempted else None
        last = math.inf if end is None else end - LAST_REPORT_SECONDS
        return min(self._hurried_at + grace_seconds, last)

    @property
    def leave_now(self) -> bool:
        """Whether the ranks must end at once, without a save."""
        return self.outrun or self.desired is DesiredState.CANCEL

    @property
    def leave(self) -> bool:
        """Whether the ranks must end, with or without a save."""
        return self.leave_now or self.preempted or self.desired is DesiredState.STOP

    def leaves_soon(self) -> bool:
        """Wait for a signal that may be under way; return whether the ranks must end.

        Slurm sends SIGTERM to every process of a step. So if SIGTERM ended a rank, and this
        supervisor receives SIGTERM shortly afterwards, the rank did not fail. Only the first call
        waits.
        """
        if self._leaves_by is None:
            self._leaves_by = time.monotonic() + SIGNAL_SECONDS
        while not self.leave and time.monotonic() < self._leaves_by:
            time.sleep(0.05)
        return self.leave

    def obey(self, reply: ReportReply) -> None:
        """Apply the orders in a reply; a repeated order has no further effect.

        Raises:
            OSError: an order could not be written to the run directory; the next reply repeats it.
        """
        # A cancel is final, because the ranks already end.
        if self.desired is not DesiredState.CANCEL and reply.desired is not self.desired:
            self.desired = reply.desired
            if reply.desired is DesiredState.CANCEL:
                self._hurry()
            self.wake()
        if reply.shells != self.shells:
            self.shells = reply.shells
            self.wake()
        if self.preempted or reply.desired is DesiredState.STOP:
            order_stop(self._run, deadline=self._deadline() if self.preempted else None)
        for pending in reply.requests if self._leads else ():
            if is_id(pending.id):
                post_request(self._run, pending.id, pending.request)

    def preempt(self) -> None:
        """Order the trainer to save and leave because this node ends; a signal handler calls it."""
        self.preempted = True
        self._hurry()
        try:
            order_stop(self._run, deadline=self._deadline())
        except OSError:
            logger.exception("the order to stop could not be written; each reply repeats it")
        self.wake()

    def give_way(self) -> None:
        """End the ranks without a save, because another attempt is current."""
        self.outrun = True
        self.wake()

    def _hurry(self) -> None:
        if self._hurried_at is None:
            self._hurried_at = time.time()

    def wake(self) -> None:
        """Wake the main thread."""
        os.eventfd_write(self.wake_fd, 1)


class StopOfProgram:
    """Carries out an order to stop a program, which need not read the run directory.

    Each rank of the program gets SIGTERM; torchrun does not, because it would end all ranks at
    once. A program with `stop` in its heartbeat gets no signal, because it reads the file `stop` in
    the run directory.
    """

    def __init__(
        self, run: WorkerRun, grace_seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run = run
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._ends_at: float | None = None
        self._signalled: set[int] = set()
        self.in_time = False
        """Whether the order arrived before any rank had failed and before all ranks had ended."""

    def is_over(self, seen: Observation) -> bool | None:
        """Signal the ranks once; return whether their time to end has passed.

        Returns:
            None if the ranks failed or ended before the order, or read the file `stop`.
        """
        now = self._clock()
        if self._ends_at is None:
            self.in_time = not seen.failed and not seen.over
            self._ends_at = now + self._seconds()
        if not self.in_time or (not self._signalled and self._reads_stop):
            return None
        for rank, pidfd in seen.pidfds.items():
            if rank not in self._signalled:
                self._signalled.add(rank)
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        return seen.over or (seen.ended and seen.settled) or now >= self._ends_at

    @property
    def _reads_stop(self) -> bool:
        beat = read_record(self._run.heartbeat, Heartbeat, owner=self._run.writer)
        return beat is not None and "stop" in beat.answers

    def _seconds(self) -> float:
        """Return the time that all ranks have to end, limited by the end of the node."""
        deadline = stop_deadline(self._run)
        left = math.inf if deadline is None else max(0.0, deadline - time.time())
        return min(self._grace_seconds, left)


class Leaving:
    """Grants time to other ranks after a failure, and to the launcher after the ranks' end."""

    def __init__(self) -> None:
        self._failed_at: float | None = None
        self._over_at: float | None = None
        self._ended_at: float | None = None

    def is_over(self, seen: Observation) -> bool:
        """Return whether the granted time has passed; call this with each observation."""
        now = time.monotonic()
        if seen.failed and self._failed_at is None:
            self._failed_at = now
        if seen.over and self._over_at is None:
            self._over_at = now
        if seen.ended and self._ended_at is None:
            self._ended_at = now
        return (
            (seen.ended and (seen.settled or _since(self._ended_at, now) > GRACE_SECONDS))
            or (seen.failed and (seen.over or _since(self._failed_at, now) > GRACE_SECONDS))
            or _since(self._over_at, now) > LEAVING_SECONDS
        )


def _since(then: float | None, now: float) -> float:
    return 0.0 if then is None else now - then
