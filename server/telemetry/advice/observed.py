"""Observes a job from its ledger, the recent steps of its ranks, and a replay of its saves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from sqlalchemy import Connection, select

from server.core.context import Context
from server.core.database.tables import attempt_nodes, nodes
from server.core.lifecycle import check_job
from server.core.visibility.scope import Scope
from server.jobs.attempts.launch import effective_spec, submitted_spec
from server.jobs.ranks.store import read_ranks
from server.telemetry.advice.advice_input import BestSaves, Observed, RecentSteps
from server.telemetry.advice.findings import findings_of
from server.telemetry.goodput.queries import JobRecords, records_of
from server.telemetry.goodput.step_sums import (
    COMPILE,
    DATA,
    STEP,
    store_step_sums,
    total_of,
    values_of_attempt,
)
from server.telemetry.goodput.what_if import save_interval_what_if
from server.telemetry.metrics.points import MAX_SUMMED, Floats
from server.telemetry.metrics.series import Values
from trainyard.protocol.goodput import AdviceView

RECENT = 1_000
"""Maximum number of recent steps that the means cover."""
WARM_STEPS = 20
"""Number of steps at the start of an attempt during which compilation counts as start-up."""
OWN, OWN_MOST = "ranks/own_seconds_median", "ranks/own_seconds_max"
WAIT, GC = "ranks/wait_seconds_median", "gc/seconds"
PEAK, RETRIES = "memory/peak_reserved_gib", "memory/allocation_retries"
READ = (STEP, DATA, COMPILE, OWN, OWN_MOST, WAIT, GC, PEAK, RETRIES)


def advice(context: Context, job_id: str, *, scope: Scope) -> AdviceView:
    """Return the advice for a job.

    Raises:
        NotFoundError: no job has this id.
    """
    with context.database.read() as connection:
        check_job(connection, job_id, scope=scope)
    store_step_sums(context, job_id)
    with context.database.read() as connection:
        records = records_of(context, connection, job_id)
        newest = max(records.recorded, key=lambda one: one.number, default=None)
        if newest is None:
            spec = submitted_spec(connection, job_id)
        else:
            spec = effective_spec(connection, newest.attempt_id)
        recent = _recent(connection, records)
    ranks = read_ranks(context, job_id, scope=scope)
    present = [each for each in ranks.stragglers if each.gone_at is None]
    observed = Observed(
        spec=spec,
        spent=records.ledger.spent,
        recent=recent,
        stragglers=sorted(present, key=lambda each: -each.share),
        best_saves=_best_saves(context, job_id, scope=scope) if records.trainings else None,
    )
    return AdviceView(
        job_id=job_id,
        attempt=recent.attempt if recent else None,
        recent_steps=recent.steps if recent else 0,
        findings=findings_of(observed),
    )


def _recent(connection: Connection, records: JobRecords) -> RecentSteps | None:
    """Return the means of the newest attempt with recorded steps; None without such an attempt, or
    without step times after its first step."""
    trained = [one for one in records.recorded if one.number in records.trainings]
    if not trained:
        return None
    newest = max(trained, key=lambda one: one.number)
    last = records.trainings[newest.number].last_step
    # Leave out the first step because it allocates and compiles.
    first = max(newest.start_step + 2, last - RECENT + 1)
    # Leave out points that were stored after the ledger was read.
    values = values_of_attempt(connection, newest.attempt_id, READ, first=first, last=last)
    seconds = _mean(values, STEP)
    if not seconds:  # a step without a duration has no shares
        return None
    retries = np.diff(_amounts(values, RETRIES))
    return RecentSteps(
        attempt=newest.number,
        steps=last - first + 1,
        step=seconds,
        data=_mean(values, DATA) or 0.0,
        own=_mean(values, OWN),
        own_most=_mean(values, OWN_MOST),
        wait=_mean(values, WAIT),
        peak_share=_peak_share(connection, newest.attempt_id, _amounts(values, PEAK)),
        recompiled=total_of(values.get(COMPILE), first=newest.start_step + WARM_STEPS + 1),
        collected=total_of(values.get(GC), first=first),
        # The counter starts again at 0 in a restarted process.
        allocation_retries=float(retries[retries > 0].sum()),
    )


def _amounts(values: Mapping[str, Values], name: str) -> Floats:
    """Return the valid values of a series; a missing series has none."""
    numbers = values[name][1] if name in values else np.empty(0)
    return numbers[(numbers >= 0) & (numbers < MAX_SUMMED)]


def _mean(values: Mapping[str, Values], name: str) -> float | None:
    amounts = _amounts(values, name)
    return float(amounts.mean()) if len(amounts) else None


def _peak_share(connection: Connection, attempt_id: str, peaks: Floats) -> float | None:
    """Return the last peak as a share of the memory of the attempt's smallest device.

    The peaks are in GiB. Return None if there is no peak, if the peak exceeds the memory, or if a
    device's memory is unknown.
    """
    query = (
        select(nodes.c.hardware)
        .join(attempt_nodes, attempt_nodes.c.node == nodes.c.name)
        .where(attempt_nodes.c.attempt_id == attempt_id)
    )
    memory = min((each.device_memory_bytes for each in connection.scalars(query)), default=0)
    share = float(peaks[-1]) * 2**30 / memory if len(peaks) and memory else 0.0
    return share if 0 < share <= 1 else None


def _best_saves(context: Context, job_id: str, *, scope: Scope) -> BestSaves | None:
    """Return the best save interval; None if no interval is better than the recorded one."""
    replayed = save_interval_what_if(context, job_id, 0, scope=scope)
    if replayed.best is None or replayed.best_interval_steps is None:
        return None
    best, recorded = replayed.best.goodput, replayed.recorded.goodput
    if not best or not recorded or best <= recorded:
        return None
    return BestSaves(replayed.best_interval_steps, best / recorded - 1)
