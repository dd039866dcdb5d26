"""Deletes what is no longer needed, once a minute: a bounded part of each kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from server.api.auth.throttle import forget_failed_logins
from server.core.context import Context
from server.core.database.engine import LeadLostError
from server.jobs.jobs.idempotency import forget_old_keys
from server.jobs.operations.cancel import prune_ended
from server.jobs.packs.store import delete_unnamed
from server.jobs.shells.service import forget_shells
from server.scheduler.queue.groups import forget_groups
from server.scheduler.retention.forget_history import (
    EventPruner,
    forget_access,
    forget_requests,
    forget_slot_time,
)
from server.scheduler.retention.forget_jobs import JobPruner, LogPruner
from server.telemetry.artifacts.cleaning import ContentCleaner
from server.telemetry.metrics.rank_steps import fold_ended

EVERY = timedelta(minutes=1)
"""Pause between two rounds: none of it is urgent."""


class Upkeep:
    """Runs each kind in turn. One that fails keeps no other from its turn, and has another one a
    minute later."""

    def __init__(self, context: Context, tasks: Sequence[Callable[[], object]] = ()) -> None:
        """Look at nothing yet.

        Args:
            context: the server's context.
            tasks: in place of the product's, for tests.
        """
        self._context = context
        self._ran_at: datetime | None = None
        self._tasks = tasks or _tasks(context)

    def run(self) -> None:
        """Run a round, if the last one is a minute old.

        Raises:
            LeadLostError: another scheduler leads.
            ExceptionGroup: some kinds failed; the others were carried out.
        """
        now = self._context.now()
        # A clock that is set back must not end the upkeep.
        if self._ran_at is not None and timedelta() <= now - self._ran_at < EVERY:
            return
        self._ran_at = now
        errors: list[Exception] = []
        for task in self._tasks:
            try:
                task()
            except LeadLostError:
                raise
            except Exception as error:  # noqa: BLE001 - raised below, after the others
                errors.append(error)
        if errors:
            raise ExceptionGroup("parts of the upkeep failed, and have another turn", errors)


def _tasks(context: Context) -> Sequence[Callable[[], object]]:
    contents, ended = ContentCleaner(context), JobPruner(context)
    logs, events = LogPruner(context), EventPruner(context)
    return (
        lambda: forget_old_keys(context),
        lambda: forget_failed_logins(context),
        lambda: prune_ended(context),
        lambda: forget_groups(context),
        lambda: fold_ended(context),
        contents.clean,
        lambda: delete_unnamed(context),
        lambda: forget_shells(context),
        ended.prune,
        logs.prune,
        events.prune,
        lambda: forget_slot_time(context),
        lambda: forget_requests(context),
        lambda: forget_access(context),
    )
