"""The functions that the scheduler's periodic tasks run."""

from __future__ import annotations

from functools import partial

from server.api.accounts.throttle import forget_failed_logins
from server.api.issuer_logins.pending import forget_pending
from server.api.sso.refresh import GroupKeeper
from server.app.periodic_tasks import TASKS
from server.cluster.projects.usage import RecentUsage
from server.core.audit.audit_retention import forget_segments
from server.core.audit.chain import seal
from server.core.audit.exporting import AuditExporter
from server.core.context import Context
from server.core.periodic import PeriodicWork, Run, store_times
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
    group_keeper = GroupKeeper(context)
    operations, isolation = OperationKeeper(context, dispatcher), order_isolation(context)

    def preempt() -> None:
        # While the search for sizes is incomplete, a job may turn out to need no preemption.
        if fitter.is_complete:
            placer.preempt()

    def forget_old_nodes() -> None:
        note_lost(context)
        forget_nodes(context)  # this includes nodes of deleted sources

    runs: dict[str, Run] = {
        "reconcile": Reconciler(context, dispatcher, usage).run,
        "drain_nodes": partial(run_drain, context, isolation),
        "stop_over_quota": partial(run_slot_hours, context, isolation, usage),
        "stop_at_bound": partial(run_bounds, context, isolation),
        "cordon_nodes": watch.run,
        "judge_nodes_again": watch.judge_again,
        "replace_lost_nodes": spares.run,
        "reserve_spares": spares.reserve,
        "leave_before_end": LeaveKeeper(context).run,
        "learn_durations": placer.learn,
        "place_jobs": placer.run,
        "fit_sizes": fitter.run,
        "preempt": preempt,
        "plan_supply": SupplyKeeper(
            context, placer.queue, over_quota=lambda: placer.over_quota, send=dispatcher.send
        ).run,
        "forget_nodes": forget_old_nodes,
        "grow_jobs": ElasticGrower(context, usage).run,
        "queue_scrub": operations.queue_scrub,
        "place_operations": operations.run,
        "record_capacity": CapacityKeeper(context).run,
        "settle_slot_time": Settler(context).run,
        "calibrate": CalibrationKeeper(context).run,
        "seal_audit_log": partial(seal, context),
        "export_audit_log": AuditExporter(context).run,
        "forget_idempotency_keys": partial(forget_old_keys, context),
        "forget_failed_logins": partial(forget_failed_logins, context),
        "refresh_groups": group_keeper.run,
        "expire_groups": group_keeper.expire,
        "forget_pending_logins": partial(forget_pending, context),
        "forget_operations": partial(prune_ended, context),
        "forget_groups": partial(forget_groups, context),
        "fold_rank_metrics": partial(fold_ended, context),
        "clean_artifacts": ContentCleaner(context).clean,
        "forget_packs": partial(delete_unnamed, context),
        "forget_shells": partial(forget_shells, context),
        "forget_jobs": JobPruner(context).run,
        "forget_logs": LogPruner(context).prune,
        "forget_events": EventPruner(context).prune,
        "forget_slot_time": partial(forget_slot_time, context),
        "forget_requests": partial(forget_requests, context),
        "forget_access": partial(forget_access, context),
        "forget_audit_segments": partial(forget_segments, context),
        "store_task_times": lambda: store_times(context, work.times),
    }
    by_task = {TASKS[name]: run for name, run in runs.items()}
    work = PeriodicWork(context.clock.monotonic, by_task)
    return work
