"""Observes a job from its ledger, the recent steps of its ranks, and a replay of its saves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from sqlalchemy import Connection, select

from server.core.context import Context
from server.core.database.metric_and_log_tables import metric_series
from server.core.database.tables import attempt_nodes, nodes
from server.jobs.attempts.launch import effective_spec, submitted_spec
from server.jobs.ranks.store import read_ranks
from server.telemetry.advice.advice_input import BestSaves, Observed, RecentSteps, SlowRank
from server.telemetry.advice.findings import findings_of
from server.telemetry.goodput.queries import JobRecords, records_of
from server.telemetry.goodput.step_sums import COMPILE, DATA, STEP, RecordedSteps, store_step_sums
from server.telemetry.goodput.what_if import save_interval_what_if
from server.telemetry.metrics.points import MAX_SUMMED, Floats
from server.telemetry.metrics.series import Values, read_values
from trainyard.protocol.goodput import AdviceView
from trainyard.protocol.rest.metrics_and_logs import StragglerView

RECENT = 1_000
"""Maximum number of recent steps that the means cover."""
WARM_STEPS = 20
"""Number of first steps of an attempt; compilation during them belongs to the start-up."""
OWN, OWN_MOST, WAIT = (
    "ranks/own_seconds_median",
    "ranks/own_seconds_max",
    "ranks/wait_seconds_median",
)
GC = "gc/seconds"
PEAK, RETRIES = "memory/peak_reserved_gib", "memory/allocation_retries"
READ = (STEP, DATA, COMPILE, OWN, OWN_MOST, WAIT, GC, PEAK, RETRIES)


def advice(context: Context, job_id: str) -> AdviceView:
    """Return the advice for a job.

    Raises:
        NotFoundError: no job has this id.
    """
    store_step_sums(context, job_id)
    with context.database.read() as connection:
        records = records_of(context, connection, job_id)
        newest = max(records.recorded, key=lambda one: one.number, default=None)
        spec = (
            submitted_spec(connection, job_id)
            if newest is None
            else effective_spec(connection, newest.attempt_id)
        )
        recent = _recent(connection, records)
    present = [each for each in read_ranks(context, job_id).stragglers if each.gone_at is None]
    observed = Observed(
        spec=spec,
        spent=records.ledger.spent,
        recent=recent,
        slow_ranks=sorted(map(_slow_rank, present), key=lambda each: -each.share),
        best_saves=_best_saves(context, job_id) if records.trainings else None,
    )
    return AdviceView(
        job_id=job_id,
        attempt=recent.attempt if recent else None,
        recent_steps=recent.steps if recent else 0,
        findings=findings_of(observed),
    )


def _slow_rank(straggler: StragglerView) -> SlowRank:
    return SlowRank(
        rank=straggler.rank,
        node=straggler.node,
        slot=straggler.slot,
        waits_for_data=straggler.kind == "data",
        share=straggler.share,
    )


def _recent(connection: Connection, records: JobRecords) -> RecentSteps | None:
    """Return the means of the newest attempt with recorded steps; None if no attempt has any."""
    trained = [one for one in records.recorded if one.number in records.trainings]
    if not trained:
        return None
    newest = max(trained, key=lambda one: one.number)
    last = records.trainings[newest.number].last_step
    # Leave out the first step because it allocates and compiles.
    first = max(newest.start_step + 2, last - RECENT + 1)
    # Leave out points that were stored after the ledger was read.
    values = _values(connection, newest, first=first, last=last)
    seconds = _mean(values, STEP)
    if not seconds:  # a step without a duration has no shares
        return None
    retries = values.get(RETRIES)
    peak, memory = _last(values, PEAK), _smallest_memory(connection, newest.attempt_id)
    return RecentSteps(
        attempt=newest.number,
        steps=last - first + 1,
        step=seconds,
        data=_mean(values, DATA) or 0.0,
        own=_mean(values, OWN),
        own_most=_mean(values, OWN_MOST),
        wait=_mean(values, WAIT),
        peak_share=_share(peak, memory),
        recompiled=_sum_from(values.get(COMPILE), newest.start_step + WARM_STEPS),
        collected=_sum_from(values.get(GC), first - 1),
        allocation_retries=_growth(retries[1]) if retries else 0.0,
    )


def _values(
    connection: Connection, one: RecordedSteps, *, first: int, last: int
) -> Mapping[str, Values]:
    """Return, by name, the points of the series that advice reads, limited to these steps."""
    series = metric_series.c
    query = select(series.id, series.name).where(
        series.attempt_id == one.attempt_id, series.name.in_(READ)
    )
    names = {row.id: row.name for row in connection.execute(query)}
    found = read_values(connection, list(names), first=first, last=last)
    return {names[key]: values for key, values in found.items() if len(values[0])}


def _mean(values: Mapping[str, Values], name: str) -> float | None:
    """Return the mean of the valid durations of a series; None if it has no valid duration."""
    if name not in values:
        return None
    numbers = values[name][1]
    durations = numbers[(numbers >= 0) & (numbers < MAX_SUMMED)]
    return float(durations.mean()) if len(durations) else None


def _last(values: Mapping[str, Values], name: str) -> float | None:
    """Return the last valid amount of a series; None if it has no valid amount."""
    if name not in values:
        return None
    numbers = values[name][1]
    amounts = numbers[(numbers >= 0) & (numbers < MAX_SUMMED)]
    return float(amounts[-1]) if len(amounts) else None


def _share(peak: float | None, memory: int | None) -> float | None:
    """Return a peak in GiB as a share of memory in bytes; None if the share is impossible."""
    share = peak * 2**30 / memory if peak and memory else None
    return share if share is not None and share <= 1 else None


def _sum_from(values: Values | None, step: int) -> float:
    """Return the sum of the durations of a series in the steps after `step`."""
    if values is None:
        return 0.0
    steps, seconds = values
    counted = (steps > step) & (seconds > 0) & (seconds < MAX_SUMMED)
    return float(seconds[counted].sum())


def _growth(counts: Floats) -> float:
    """Return the growth of a counter that starts again at 0 in a restarted process."""
    steps = np.diff(counts[(counts >= 0) & (counts < MAX_SUMMED)])
    return float(steps[steps > 0].sum())


def _smallest_memory(connection: Connection, attempt_id: str) -> int | None:
    """Return the memory of an attempt's smallest device in bytes; None if any is unknown."""
    query = (
        select(nodes.c.hardware)
        .join(attempt_nodes, attempt_nodes.c.node == nodes.c.name)
        .where(attempt_nodes.c.attempt_id == attempt_id)
    )
    found = [hardware.device_memory_bytes for hardware in connection.scalars(query)]
    return min(found, default=0) or None


def _best_saves(context: Context, job_id: str) -> BestSaves | None:
    """Return the best save interval; None if no interval is better than the recorded one."""
    replayed = save_interval_what_if(context, job_id, 0)
    if replayed.best is None or replayed.best_interval_steps is None:
        return None
    best, recorded = replayed.best.goodput, replayed.recorded.goodput
    if not best or not recorded or best <= recorded:
        return None
    return BestSaves(replayed.best_interval_steps, best / recorded - 1)
