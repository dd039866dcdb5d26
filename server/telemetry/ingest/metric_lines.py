"""Parses lines of metrics files: records of steps, and restarts, which only event files have."""

from __future__ import annotations

from functools import lru_cache

from pydantic import ValidationError

from server.jobs.checkpoints.catalog import DIGEST, check_moment
from trainyard.protocol.record_parser import parse_record
from trainyard.run.metric_names import is_storable
from trainyard.run.records import MetricRecord, SeriesRestart

NAMES = b'"names":'
"""Bytes that every line of a restart contains."""


def metric_line(text: bytes) -> MetricRecord:
    """Parse a line of `metrics.jsonl`.

    Raises:
        ValueError: the line is not a record, or the store cannot keep its numbers, names or digest.
    """
    metrics = parse_record(MetricRecord, text)
    check_moment(metrics.step, metrics.time)
    for name in metrics.values:
        _check_name(name)
    if metrics.data_digest is not None and not DIGEST.fullmatch(metrics.data_digest):
        raise ValueError(f"data_digest {metrics.data_digest[:40]!r} is not a digest")
    return metrics


def event_file_line(text: bytes) -> MetricRecord:
    """Parse a line of `event_files.jsonl`: a restart, or a line as in `metric_line`."""
    try:
        restart = parse_record(SeriesRestart, text) if NAMES in text else None
    except ValidationError:  # the name of a metric may contain `NAMES`
        restart = None
    if restart is None:
        return metric_line(text)
    check_moment(restart.step, restart.time)
    for name in restart.names:
        _check_name(name)
    return restart


@lru_cache(maxsize=4096)  # every line of a run has the same names
def _check_name(name: str) -> None:
    if not is_storable(name):
        raise ValueError(f"{name[:120]!r} is not the name of a metric")
