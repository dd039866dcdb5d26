"""Orders to an attempt: received from the server and by signals, carried out by the main thread."""

from __future__ import annotations

import logging
import os

from trainyard.base.ids import is_id
from trainyard.protocol.states import DesiredState
from trainyard.protocol.worker_messages import ReportReply
from trainyard.run.control_files import order_stop, post_request
from worker.node.node_store import WorkerRun

logger = logging.getLogger(__name__)


class Orders:
    """The newest orders of one attempt; `wake_fd` becomes readable when they change."""

    def __init__(self, run: WorkerRun, *, leads: bool) -> None:
        self._run = run
        self._leads = leads
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when there is something new."""
        self.desired = DesiredState.RUN
        """The state that the server ordered last."""
        self.preempted = False
        """Whether a SIGTERM to the supervisor ended the attempt on this node."""
        self.outrun = False
        """Whether the server refused a report because another attempt is current."""

    @property
    def leave_now(self) -> bool:
        """Whether the ranks are to be ended without a save."""
        return self.outrun or self.desired is DesiredState.CANCEL

    @property
    def leave(self) -> bool:
        """Whether the ranks are to end, with or without a save."""
        return self.leave_now or self.preempted or self.desired is DesiredState.STOP

    def obey(self, reply: ReportReply) -> None:
        """Take the orders of a reply: a level, so that a repeated order changes nothing.

        Raises:
            OSError: an order could not be written into the run directory; the next reply repeats
                it.
        """
        # A cancel is never taken back: the ranks are being ended.
        if self.desired is not DesiredState.CANCEL and reply.desired is not self.desired:
            self.desired = reply.desired
            self.wake()
        if self.preempted or reply.desired is DesiredState.STOP:
            order_stop(self._run)
        for pending in reply.requests if self._leads else ():
            if is_id(pending.id):
                post_request(self._run, pending.id, pending.request)

    def preempt(self) -> None:
        """Order the trainer to save and leave: this node ends. A signal handler calls it."""
        self.preempted = True
        try:
            order_stop(self._run)
        except OSError:
            logger.exception("the order to stop could not be written; each reply repeats it")
        self.wake()

    def give_way(self) -> None:
        """End the ranks without a save: another attempt is current."""
        self.outrun = True
        self.wake()

    def wake(self) -> None:
        """Wake the main thread."""
        os.eventfd_write(self.wake_fd, 1)
