"""The scheduler's process: a round every quarter of a second while it leads."""

from __future__ import annotations

import gc
import logging
import signal
import threading
from collections.abc import Callable, Sequence

from server.cluster.projects.usage import RecentUsage
from server.core.context import Context
from server.core.database.engine import LeadLostError
from server.scheduler.autoscaling.keeper import SupplyKeeper
from server.scheduler.autoscaling.leave_before_end import LeaveKeeper
from server.scheduler.elastic.fit_sizes import SizeFitter
from server.scheduler.elastic.grow_jobs import ElasticGrower
from server.scheduler.retention.rounds import Upkeep
from server.scheduler.rounds.cordon import NodeWatch
from server.scheduler.rounds.dispatch import CelerySender, Dispatcher, Outbox
from server.scheduler.rounds.drain import run_bounds, run_drain, run_slot_hours
from server.scheduler.rounds.leader import Leader, leading
from server.scheduler.rounds.operations import OperationKeeper
from server.scheduler.rounds.reconcile import Reconciler
from server.scheduler.rounds.round import Placer
from server.scheduler.rounds.spares import SpareKeeper
from server.telemetry.calibration.keeper import CalibrationKeeper
from server.telemetry.goodput.capacity import CapacityKeeper
from server.telemetry.goodput.holdings import Settler

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
"""Pause between two rounds; an idle round costs a few reads and no write."""
LONGEST_PAUSE_SECONDS = 10.0
"""Longest pause after rounds that failed, for example during an outage of the database."""
COLLECT_AFTER = 100_000
"""Objects, without those that were freed, after which the garbage collector looks at the newest. A
round on a large cluster makes as many that live to its end: with the default of 700 the collector
took a third of the processor time."""


class Scheduler:
    """Rounds of reconciling and placing, while this process leads."""

    def __init__(self, context: Context, dispatcher: Dispatcher, leader: Leader) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._leader = leader
        self._epoch: int | None = None
        self._parts: Sequence[Callable[[], object]] = ()

    def tick(self) -> bool:
        """Run one round, and return whether this process leads.

        Raises:
            ExceptionGroup: parts of the round failed; the others were carried out.
        """
        epoch = self._leader.held()
        if epoch is None:
            return False
        if epoch != self._epoch:
            self._epoch, self._parts = epoch, self._parts_of(epoch)
        errors: list[Exception] = []
        for run_part in self._parts:
            try:
                run_part()
            except LeadLostError:
                self._leader.lose(epoch)
                return False
            except Exception as error:  # noqa: BLE001 - raised below, after the other parts
                errors.append(error)
        if errors:
            raise ExceptionGroup("parts of this round failed", errors)
        return True

    def _parts_of(self, epoch: int) -> Sequence[Callable[[], object]]:
        """Return the parts of a round, which write in this epoch and remember nothing older."""
        context = leading(self._context, self._leader, epoch)
        usage = RecentUsage().read
        placer = Placer(context, self._dispatcher, usage)
        fitter = SizeFitter(context, placer.queue, usage)

        def preempt() -> None:
            if not fitter.is_paused:  # else a job may need no victims: its search is not at its end
                placer.preempt()

        return (
            Reconciler(context, self._dispatcher, usage).run,
            lambda: run_drain(context),
            lambda: run_slot_hours(context, usage),
            lambda: run_bounds(context),
            NodeWatch(context).run,
            SpareKeeper(context, self._dispatcher, usage).run,
            LeaveKeeper(context).run,
            placer.run,
            fitter.run,
            preempt,
            SupplyKeeper(
                context, placer.queue, lambda: placer.over_quota, self._dispatcher.send
            ).run,
            ElasticGrower(context, usage).run,
            OperationKeeper(context, self._dispatcher).run,
            CapacityKeeper(context).run,
            Settler(context).run,
            CalibrationKeeper(context).run,
            Upkeep(context).run,
        )

    def run(self, stop: threading.Event) -> None:
        """Run rounds until `stop` is set, with a longer pause after each failed one."""
        pause = TICK_SECONDS
        with self._leader.renewed():
            while not stop.wait(pause):
                try:
                    self.tick()
                    pause = TICK_SECONDS
                except Exception:
                    logger.exception("this round failed; the next one starts anew")
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def collect_seldom() -> None:
    """Have the garbage collector run seldom, and never look at what is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


def run(context: Context, *, broker_url: str) -> None:
    """Run the scheduler until SIGTERM or SIGINT; its messages go to the broker of this URL."""
    collect_seldom()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sender = CelerySender(broker_url)
    outbox = Outbox(sender, context.clock)
    try:
        Scheduler(context, outbox, Leader(context.database)).run(stop)
    finally:
        outbox.close()
        sender.close()
