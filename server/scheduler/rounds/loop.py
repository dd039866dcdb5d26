"""The scheduler's process, which runs a round every quarter of a second while it leads."""

from __future__ import annotations

import gc
import logging
import signal
import threading
from collections.abc import Callable

from server.core.context import Context
from server.core.database.engine import LeadLostError
from server.core.periodic import PeriodicWork
from server.scheduler.rounds.dispatch import CelerySender, Dispatcher, Outbox
from server.scheduler.rounds.leader import Leader, leading

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
"""Pause between two rounds, in seconds; an idle round costs a few reads and no write."""
LONGEST_PAUSE_SECONDS = 10.0
"""Longest pause after failed rounds, in seconds, for example during an outage of the database."""
COLLECT_AFTER = 100_000
"""Number of new objects, minus freed objects, after which the garbage collector scans the newest
generation. On a large cluster, a round creates about this many objects that live until the round
ends. With Python's default of 700, the collector used a third of the CPU time."""


WorkOf = Callable[[Context, Dispatcher], PeriodicWork]
"""Function that creates the tasks of one epoch. These tasks write only in this epoch, and start
without state from earlier epochs."""


class Scheduler:
    """Runs rounds of periodic work while this process leads."""

    def __init__(
        self, context: Context, dispatcher: Dispatcher, *, leader: Leader, work_of: WorkOf
    ) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._leader = leader
        self._work_of = work_of
        self._epoch: int | None = None
        self._work: PeriodicWork | None = None

    def tick(self) -> bool:
        """Run one round, and return whether this process leads.

        Raises:
            ExceptionGroup: some tasks failed; the other tasks were carried out.
        """
        epoch = self._leader.held()
        if epoch is None:
            return False
        if self._work is None or epoch != self._epoch:
            context = leading(self._context, self._leader, epoch)
            self._epoch, self._work = epoch, self._work_of(context, self._dispatcher)
        try:
            self._work.run_due()
        except LeadLostError:
            self._leader.lose(epoch)
            return False
        return True

    def run(self, stop: threading.Event) -> None:
        """Run rounds until `stop` is set; the pause grows with each failed round.

        A round in which only tasks failed does not lengthen the pause, because each failed task has
        its own delay.
        """
        pause = TICK_SECONDS
        with self._leader.renewed():
            while not stop.wait(pause):
                try:
                    self.tick()
                    pause = TICK_SECONDS
                except ExceptionGroup:
                    logger.exception("this round left out some work")
                    pause = TICK_SECONDS
                except Exception:
                    logger.exception("this round failed; the next one starts over")
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def collect_seldom() -> None:
    """Make the garbage collector run seldom, and exclude all present objects from its scans."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


def run(context: Context, work_of: WorkOf, *, broker_url: str) -> None:
    """Run the scheduler, with its messages sent to a broker, until SIGTERM or SIGINT."""
    collect_seldom()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sender = CelerySender(broker_url)
    outbox = Outbox(sender.send, context.clock)
    try:
        Scheduler(context, outbox, leader=Leader(context.database), work_of=work_of).run(stop)
    finally:
        outbox.close()
        sender.close()
