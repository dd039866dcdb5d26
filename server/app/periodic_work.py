"""The functions that the scheduler's periodic tasks run."""

from __future__ import annotations

from functools import partial

from server.api.auth.throttle import forget_failed_logins
from server.app import periodic_tasks as tasks
from server.cluster.projects.usage import RecentUsage
from server.core.context import Context
from server.core.periodic import PeriodicTask, PeriodicWork, Run, store_times
from server.jobs.jobs.idempotency import forget_old_keys
from server.jobs.operations.cancel import prune_ended
from server.jobs.packs.store import delete_unnamed
from server.jobs.queue.groups import forget_groups
from server.jobs.shells.service import forget_shells
from server.scheduler.autoscaling.forget_nodes import forget_nodes, note_lost
from server.scheduler.autoscaling.keeper import SupplyKeeper
from server.scheduler.autoscaling.leave_before_end import LeaveKeeper
from server.scheduler.elastic.fit_sizes import SizeFitter
from server.scheduler.elastic.grow_jobs import ElasticGrower
from server.scheduler.retention.forget_history import (
    EventPruner,
    forget_access,
    forget_requests,
    forget_slot_time,
)
from server.scheduler.retention.forget_jobs import JobPruner, LogPruner
from server.scheduler.rounds.cordon import NodeWatch
from server.scheduler.rounds.dispatch import Dispatcher
from server.scheduler.rounds.drain import order_isolation, run_bounds, run_drain, run_slot_hours
from server.scheduler.rounds.operations import OperationKeeper
from server.scheduler.rounds.reconcile import Reconciler
from server.scheduler.rounds.round import Placer
from server.scheduler.rounds.spares import SpareKeeper
from server.telemetry.artifacts.cleaning import ContentCleaner
from server.telemetry.calibration.keeper import CalibrationKeeper
from server.telemetry.goodput.capacity import CapacityKeeper
from server.telemetry.goodput.holdings import Settler
from server.telemetry.metrics.rank_steps import fold_ended


def periodic_work(context: Context, dispatcher: Dispatcher) -> PeriodicWork:
    """Return the work of all periodic tasks in one epoch of the leader, in the order of a round.

    Args:
        context: a context that can write only during this epoch.
        dispatcher: sends messages to nodes and provisioners.
    """
    usage = RecentUsage().read
    placer = Placer(context, dispatcher, usage)
    fitter = SizeFitter(context, placer.queue, usage)
    spares, watch = SpareKeeper(context, dispatcher, usage), NodeWatch(context)
    operations, isolation = OperationKeeper(context, dispatcher), order_isolation(context)

    def preempt() -> None:
        # While the search for sizes is incomplete, a job may turn out to need no preemption.
        if fitter.is_complete:
            placer.preempt()

    def forget_old_nodes() -> None:
        note_lost(context)
        forget_nodes(context)  # this includes nodes of deleted sources

    runs: dict[PeriodicTask, Run] = {
        tasks.RECONCILE: Reconciler(context, dispatcher, usage).run,
        tasks.DRAIN: partial(run_drain, context, isolation),
        tasks.SLOT_HOURS: partial(run_slot_hours, context, isolation, usage),
        tasks.BOUNDS: partial(run_bounds, context, isolation),
        tasks.CORDON: watch.run,
        tasks.JUDGE_AGAIN: watch.judge_again,
        tasks.REPLACE_SPARES: spares.run,
        tasks.RESERVE_SPARES: spares.reserve,
        tasks.LEAVE: LeaveKeeper(context).run,
        tasks.LEARN: placer.learn,
        tasks.PLACE: placer.run,
        tasks.FIT_SIZES: fitter.run,
        tasks.PREEMPT: preempt,
        tasks.SUPPLY: SupplyKeeper(
            context, placer.queue, over_quota=lambda: placer.over_quota, send=dispatcher.send
        ).run,
        tasks.FORGET_NODES: forget_old_nodes,
        tasks.GROW: ElasticGrower(context, usage).run,
        tasks.SCRUB: operations.queue_scrub,
        tasks.OPERATIONS: operations.run,
        tasks.CAPACITY: CapacityKeeper(context).run,
        tasks.SETTLE: Settler(context).run,
        tasks.CALIBRATE: CalibrationKeeper(context).run,
        tasks.FORGET_KEYS: partial(forget_old_keys, context),
        tasks.FORGET_LOGINS: partial(forget_failed_logins, context),
        tasks.FORGET_OPERATIONS: partial(prune_ended, context),
        tasks.FORGET_GROUPS: partial(forget_groups, context),
        tasks.FOLD_RANKS: partial(fold_ended, context),
        tasks.CLEAN_ARTIFACTS: ContentCleaner(context).clean,
        tasks.FORGET_PACKS: partial(delete_unnamed, context),
        tasks.FORGET_SHELLS: partial(forget_shells, context),
        tasks.FORGET_JOBS: JobPruner(context).run,
        tasks.FORGET_LOGS: LogPruner(context).prune,
        tasks.FORGET_EVENTS: EventPruner(context).prune,
        tasks.FORGET_SLOT_TIME: partial(forget_slot_time, context),
        tasks.FORGET_REQUESTS: partial(forget_requests, context),
        tasks.FORGET_ACCESS: partial(forget_access, context),
        tasks.STORE_TIMES: lambda: store_times(context, work.times),
    }
    work = PeriodicWork(context.clock.monotonic, runs)
    return work
