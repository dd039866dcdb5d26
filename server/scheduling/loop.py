"""The scheduler's process: a round every quarter of a second while it leads."""

from __future__ import annotations

import logging
import signal
import threading

from server.context import Context
from server.scheduling.dispatch import CelerySender, Dispatcher, Outbox
from server.scheduling.drain import run_drain
from server.scheduling.leader import Leadership, leadership
from server.scheduling.operations import OperationKeeper
from server.scheduling.reconcile import Reconciler
from server.scheduling.round import Placer

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
"""Pause between two rounds; an idle round costs a few reads and no write."""
LONGEST_PAUSE_SECONDS = 10.0
"""Longest pause after rounds that failed, for example during an outage of the database."""


class Scheduler:
    """Rounds of reconciling and placing, while this process leads."""

    def __init__(self, context: Context, dispatcher: Dispatcher, leader: Leadership) -> None:
        self._context = context
        self._leader = leader
        self._reconciler = Reconciler(context, dispatcher)
        self._placer = Placer(context, dispatcher)
        self._operations = OperationKeeper(context, dispatcher)

    def tick(self) -> bool:
        """Run one round, and return whether this process leads.

        Raises:
            ExceptionGroup: parts of the round failed; the others were carried out.
        """
        if not self._leader.held():
            return False
        errors: list[Exception] = []
        parts = (
            self._reconciler.run,
            lambda: run_drain(self._context),
            self._placer.run,
            self._operations.run,
        )
        for run_part in parts:
            try:
                run_part()
            except Exception as error:  # noqa: BLE001 - raised below, after the other parts
                errors.append(error)
        if errors:
            raise ExceptionGroup("parts of this round failed", errors)
        return True

    def run(self, stop: threading.Event) -> None:
        """Run rounds until `stop` is set, with a longer pause after each failed one."""
        pause = TICK_SECONDS
        try:
            while not stop.wait(pause):
                try:
                    self.tick()
                    pause = TICK_SECONDS
                except Exception:
                    logger.exception("this round failed; the next one starts anew")
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        finally:
            self._leader.release()


def run(context: Context) -> None:
    """Run the scheduler until SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sender = CelerySender(context.settings.broker_url)
    outbox = Outbox(sender, context.clock)
    try:
        Scheduler(context, outbox, leadership(context)).run(stop)
    finally:
        outbox.close()
        sender.close()
