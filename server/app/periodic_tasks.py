"""The table of all periodic tasks of the scheduler that leads, in the order of a round."""

from __future__ import annotations

from server.core.periodic import EACH_ROUND, PeriodicTask

SLICE = 0.1
"""Time of a round that a task may take, in seconds; the last step of the task may exceed it."""
MINUTE = 60.0


def _each_round(name: str, purpose: str) -> PeriodicTask:
    return PeriodicTask(name, EACH_ROUND, SLICE, purpose)


def _upkeep(name: str, purpose: str) -> PeriodicTask:
    """Return a task that deletes old rows; rows that are left wait for its next run."""
    return PeriodicTask(name, MINUTE, 0.25, purpose, resumes=False)


RECONCILE = _each_round("reconcile", "Compares rows with reports, and repairs differences.")
DRAIN = _each_round("drain_nodes", "Moves attempts off nodes that are drained or end soon.")
SLOT_HOURS = _each_round("stop_over_quota", "Stops jobs of projects without slot-hours left.")
BOUNDS = _each_round("stop_at_bound", "Stops jobs that have reached `max_runtime_seconds`.")
CORDON = PeriodicTask(
    "cordon_nodes", 5.0, SLICE, "Counts failures of nodes, and cordons those that fail repeatedly."
)
JUDGE_AGAIN = PeriodicTask(
    "judge_nodes_again", MINUTE, SLICE, "Judges nodes again: jobs may have trained elsewhere."
)
REPLACE_SPARES = _each_round("replace_lost_nodes", "Places jobs that lost a node on their spares.")
RESERVE_SPARES = PeriodicTask(
    "reserve_spares", 5.0, SLICE, "Reserves nodes for attempts that lack spare ones."
)
LEAVE = PeriodicTask("leave_before_end", 1.0, SLICE, "Drains nodes with an allocation ending soon.")
LEARN = PeriodicTask(
    "learn_durations", 1.0, SLICE, "Estimates durations of queued jobs from equal ones."
)
PLACE = _each_round("place_jobs", "Places queued jobs, and stores why the others wait.")
FIT_SIZES = _each_round("fit_sizes", "Gives waiting elastic jobs the size that fits.")
PREEMPT = _each_round("preempt", "Orders attempts to leave for jobs of higher priority.")
SUPPLY = PeriodicTask(
    "plan_supply", 1.0, SLICE, "Requests nodes for queued jobs, and releases idle nodes."
)
FORGET_NODES = PeriodicTask(
    "forget_nodes", MINUTE, SLICE, "Deletes nodes of ended requests, and reports lost requests."
)
GROW = PeriodicTask("grow_jobs", 5.0, SLICE, "Resizes running elastic jobs onto free slots.")
OPERATIONS = _each_round("place_operations", "Gives operations to nodes, and expires their leases.")
SCRUB = PeriodicTask("queue_scrub", MINUTE, SLICE, "Queues the check of the oldest checkpoint.")
CAPACITY = PeriodicTask("record_capacity", 5.0, SLICE, "Records changes of the nodes' capacity.")
SETTLE = PeriodicTask("settle_slot_time", 5.0, SLICE, "Stores the slot-time of ended jobs.")
CALIBRATE = PeriodicTask("calibrate", 15.0, SLICE, "Fits speeds to ended attempts.")
FORGET_KEYS = _upkeep("forget_idempotency_keys", "Deletes idempotency keys after their time.")
FORGET_LOGINS = _upkeep("forget_failed_logins", "Deletes counts of failed logins.")
FORGET_OPERATIONS = _upkeep("forget_operations", "Deletes operations that ended long ago.")
FORGET_GROUPS = _upkeep("forget_groups", "Deletes groups of the queue without jobs.")
FOLD_RANKS = _upkeep("fold_rank_metrics", "Folds metrics of ranks that ended without a report.")
CLEAN_ARTIFACTS = _upkeep("clean_artifacts", "Deletes contents that no artifact names.")
FORGET_PACKS = _upkeep("forget_packs", "Deletes packs that no job names.")
FORGET_SHELLS = _upkeep("forget_shells", "Deletes commands of people that ended long ago.")
FORGET_JOBS = _upkeep("forget_jobs", "Deletes unneeded jobs that ended long ago.")
FORGET_LOGS = _upkeep("forget_logs", "Deletes logs of attempts that ended long ago.")
FORGET_EVENTS = _upkeep("forget_events", "Deletes old events that belong to no job.")
FORGET_SLOT_TIME = _upkeep("forget_slot_time", "Deletes old changes of capacity and slot-time.")
FORGET_REQUESTS = _upkeep("forget_requests", "Deletes requests for nodes that ended long ago.")
FORGET_ACCESS = _upkeep("forget_access", "Deletes sessions that expired, and tokens a month later.")

STORE_TIMES = PeriodicTask(
    "store_task_times", 10.0, SLICE, "Stores these times for `/readyz` and `/metrics`."
)

TASKS = (
    RECONCILE,
    DRAIN,
    SLOT_HOURS,
    BOUNDS,
    CORDON,
    JUDGE_AGAIN,
    REPLACE_SPARES,
    RESERVE_SPARES,
    LEAVE,
    LEARN,
    PLACE,
    FIT_SIZES,
    PREEMPT,
    SUPPLY,
    FORGET_NODES,
    GROW,
    SCRUB,
    OPERATIONS,
    CAPACITY,
    SETTLE,
    CALIBRATE,
    FORGET_KEYS,
    FORGET_LOGINS,
    FORGET_OPERATIONS,
    FORGET_GROUPS,
    FOLD_RANKS,
    CLEAN_ARTIFACTS,
    FORGET_PACKS,
    FORGET_SHELLS,
    FORGET_JOBS,
    FORGET_LOGS,
    FORGET_EVENTS,
    FORGET_SLOT_TIME,
    FORGET_REQUESTS,
    FORGET_ACCESS,
    STORE_TIMES,
)
"""All periodic tasks, in the order in which a round runs them."""
