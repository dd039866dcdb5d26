"""Table of all periodic tasks of the leading scheduler, in their order within a round."""

from __future__ import annotations

from server.core.periodic import EACH_ROUND, PeriodicTask

SLICE = 0.1
"""Time that a task may take in one round, in seconds; its last step may exceed this time."""
MINUTE = 60.0


def _task(name: str, every_seconds: float, purpose: str) -> PeriodicTask:
    return PeriodicTask(name, every_seconds, SLICE, purpose)


def _upkeep(name: str, purpose: str) -> PeriodicTask:
    """Return a task that deletes old rows; rows left after the time limit wait for the next run."""
    return PeriodicTask(name, MINUTE, 0.25, purpose, resumes=False)


_DECLARED = (
    _task("reconcile", EACH_ROUND, "Compares rows with reports, and repairs differences."),
    _task("drain_nodes", EACH_ROUND, "Moves attempts off nodes that are drained or end soon."),
    _task("stop_over_quota", EACH_ROUND, "Stops jobs of projects without slot-hours left."),
    _task("stop_at_bound", EACH_ROUND, "Stops jobs that have reached `max_runtime_seconds`."),
    _task("cordon_nodes", 5.0, "Counts failures of nodes, and cordons those that fail repeatedly."),
    _task("judge_nodes_again", MINUTE, "Judges nodes again: jobs may have trained elsewhere."),
    _task("replace_lost_nodes", EACH_ROUND, "Places jobs that lost a node on their spares."),
    _task("reserve_spares", 5.0, "Reserves nodes for attempts that lack spare ones."),
    _task("leave_before_end", 1.0, "Drains nodes with an allocation ending soon."),
    _task("learn_durations", 1.0, "Estimates durations of queued jobs from equal ones."),
    _task("place_jobs", EACH_ROUND, "Places queued jobs, and stores why the others wait."),
    _task("fit_sizes", EACH_ROUND, "Gives waiting elastic jobs the size that fits."),
    _task("preempt", EACH_ROUND, "Orders attempts to leave for jobs of higher priority."),
    _task("plan_supply", 1.0, "Requests nodes for queued jobs, and releases idle nodes."),
    _task("forget_nodes", MINUTE, "Deletes nodes of ended requests, and reports lost requests."),
    _task("grow_jobs", 5.0, "Resizes running elastic jobs onto free slots."),
    _task("queue_scrub", MINUTE, "Queues the check of the oldest checkpoint."),
    _task("place_operations", EACH_ROUND, "Gives operations to nodes, and expires their leases."),
    _task("record_capacity", 5.0, "Records changes of the nodes' capacity."),
    _task("settle_slot_time", 5.0, "Stores the slot-time of ended jobs."),
    _task("calibrate", 15.0, "Fits speeds to ended attempts."),
    _task("seal_audit_log", 1.0, "Numbers and chains the new rows of the audit log."),
    _task("export_audit_log", 1.0, "Starts the export of new rows of the audit log."),
    _upkeep("forget_idempotency_keys", "Deletes idempotency keys after their time."),
    _upkeep("forget_failed_logins", "Deletes counts of failed logins."),
    _task("refresh_groups", 10.0, "Starts refreshes of groups at the issuer, in a thread."),
    _upkeep("expire_groups", "Ends roles of groups that the issuer no longer confirms."),
    _upkeep("forget_pending_logins", "Deletes expired logins of browsers and devices."),
    _upkeep("forget_operations", "Deletes operations that ended long ago."),
    _upkeep("forget_groups", "Deletes groups of the queue without jobs."),
    _upkeep("fold_rank_metrics", "Folds metrics of ranks that ended without a report."),
    _upkeep("clean_artifacts", "Deletes contents that no artifact names."),
    _upkeep("forget_packs", "Deletes packs that no job names."),
    _upkeep("forget_shells", "Deletes commands of people that ended long ago."),
    _upkeep("forget_jobs", "Deletes unneeded jobs that ended long ago."),
    _upkeep("forget_logs", "Deletes logs of attempts that ended long ago."),
    _upkeep("forget_events", "Deletes old events that belong to no job."),
    _upkeep("forget_slot_time", "Deletes old changes of capacity and slot-time."),
    _upkeep("forget_requests", "Deletes requests for nodes that ended long ago."),
    _upkeep("forget_access", "Deletes expired sessions; ended tokens and invitations later."),
    _upkeep("forget_audit_segments", "Deletes the oldest segment of the audit log."),
    _task("store_task_times", 10.0, "Stores these times for `/readyz` and `/metrics`."),
)
TASKS = {task.name: task for task in _DECLARED}
"""All periodic tasks by name, in the order in which a round runs them."""
