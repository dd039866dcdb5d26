"""Writes the files of a run directory: appended, replaced, or written once."""

from __future__ import annotations

import os
from pathlib import PurePath

from trainyard.run.atomic import create_file, replace_file
from trainyard.run.directory import RunDirectory
from trainyard.run.failures import Failure
from trainyard.run.record_base import JsonRecord, to_json
from trainyard.run.records import (
    EventRecord,
    ExitRecord,
    Heartbeat,
    MetricRecord,
    Outcome,
    Provenance,
)


def append_metrics(run: RunDirectory, metrics: MetricRecord) -> None:
    """Append the metrics of a step to `metrics.jsonl`.

    Raises:
        OSError: the record could not be appended whole.
    """
    _append(run.metrics, metrics)


def append_event(run: RunDirectory, record: EventRecord) -> None:
    """Append an event to `events.jsonl`.

    Raises:
        OSError: the record could not be appended whole.
    """
    _append(run.events, record)


def write_heartbeat(run: RunDirectory, heartbeat: Heartbeat) -> None:
    """Replace `heartbeat.json`.

    Raises:
        OSError: the system refuses; the former heartbeat is unchanged.
    """
    # Not synced: it is replaced every second, and a power cut ends the attempt anyway.
    replace_file(run.heartbeat, to_json(heartbeat) + "\n", durable=False)


def write_provenance(run: RunDirectory, provenance: Provenance) -> None:
    """Write `provenance.json`.

    Raises:
        OSError: the system refuses.
    """
    replace_file(run.provenance, to_json(provenance) + "\n", durable=False)


def write_error(run: RunDirectory, failure: Failure) -> bool:
    """Write `error.json` unless it exists: the first failure of a node is the cause.

    Returns:
        Whether the file was written.

    Raises:
        OSError: the system refuses.
    """
    return create_file(run.error, _for_people(failure))


def write_outcome(run: RunDirectory, outcome: Outcome) -> bool:
    """Write `outcome.json` unless it exists; return whether it was written.

    Raises:
        OSError: the system refuses.
    """
    return create_file(run.outcome, _for_people(outcome))


def write_exit(run: RunDirectory, record: ExitRecord) -> None:
    """Replace `exit.json`.

    Raises:
        OSError: the system refuses.
    """
    replace_file(run.exit, _for_people(record))


def _append(path: PurePath, record: JsonRecord) -> None:
    # One write: a reader that follows the file never sees lines of two records mixed.
    line = to_json(record).encode() + b"\n"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        written = os.write(fd, line)
    finally:
        os.close(fd)
    if written != len(line):
        raise OSError(f"{path}: only {written} of {len(line)} bytes could be appended")


def _for_people(record: JsonRecord) -> str:
    """Return the text of a file that people open: indented."""
    return to_json(record, indent=1) + "\n"
