"""Moves values of an attempt's start step to the earlier attempt that trained this step.

A trainer that stops leaves out the validation of its last step; the resumed attempt runs it.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

from server.jobs.attempts.lineage import attempts_of, lineage_of
from server.telemetry.ingest.report import IncomingReport
from trainyard.run.records import MetricRecord


def move_late_values(
    incoming: IncomingReport, metrics: MutableMapping[str, list[MetricRecord]]
) -> None:
    """Move values of the start step to the attempt of the lineage that trained the step.

    If a series already has a value for the step, that value stays, because `store_metrics` stores a
    step once. The data digest stays with the attempt that recorded it.

    Args:
        incoming: the report of an attempt.
        metrics: new records by attempt id, in the order of steps.
    """
    share = incoming.share
    own = metrics[share.attempt_id]
    late = [record for record in own if record.step == share.start_step and record.values]
    if not late or share.parent_checkpoint_id is None:
        return
    keys = attempts_of(incoming.connection, share.job_id)
    segments = lineage_of(keys, share.number).segments
    step = share.start_step
    owner = next((s.attempt_id for s in segments if s.after < step <= s.until), None)
    if owner is None or owner == share.attempt_id:  # a fork: another job trained the step
        return
    metrics.setdefault(owner, []).extend(replace(each, data_digest=None) for each in late)
    metrics[share.attempt_id] = [
        replace(record, values={}) if record.step == step else record for record in own
    ]
