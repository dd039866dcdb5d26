"""Masks secrets in an attempt's records and in the files that its run directory keeps."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast, get_args, get_type_hints

from trainyard.base.model_base import RecordModel
from trainyard.base.redaction import OutputMask
from trainyard.protocol.manifest import SaveFailed, SaveSettled
from trainyard.protocol.rest.event_data import PhaseEntered, Resumed, StopAgreed, WeightsLoaded
from trainyard.protocol.rest.metrics_and_logs import RankTimes, StragglerFound, StragglerGone
from trainyard.run import records
from trainyard.run.artifacts.artifact_records import OWN_KINDS, ArtifactLine
from trainyard.run.fact_types.fact_records import RunFacts
from trainyard.run.record_base import JsonRecord
from worker.node.files import open_regular, read_small
from worker.node.folder_usage import remove_tree
from worker.node.node_store import NodeStore, WorkerRun

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

PART_BYTES = 1024 * 1024
"""Number of bytes read at once; longer than every form of a secret."""
RECORDS = (".json", ".jsonl")
"""Suffixes of files whose lines are JSON."""
COMMIT: records.RunEventKind = "checkpoint_committed"
"""Kind of the events that stay whole: the server compares their paths, ids and checksums with the
checkpoint's files."""
_LINE = re.compile(rb"[^\n]*+\n?")


def masked_value(value: Value, mask: OutputMask) -> Value:
    """Return a record or a JSON value with masked texts.

    Words of our own stay: the names of fields, and enums such as the reason of a failure.
    """
    return cast("Value", _masked(value, mask)) if mask else value


def masked_lines(content: bytes, mask: OutputMask) -> bytes:
    """Return lines of records with masked secrets, each as long as before."""
    if not mask or COMMIT.encode() not in content:
        return mask.lines(content, words=_WORDS)
    return b"".join(
        line if _is_commit(line) else mask.lines(line, words=_WORDS)
        for line in _LINE.findall(content)
    )


def _is_commit(line: bytes) -> bool:
    if COMMIT.encode() not in line:
        return False
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # the second one for thousands of brackets
        return False
    return isinstance(record, dict) and record.get("kind") == COMMIT


def _field_names(*kinds: type) -> frozenset[str]:
    """Return the names of the fields of these records, and of the records in their fields."""
    names: set[str] = set()
    seen, left = set(kinds), list(kinds)
    while left:
        for name, hint in get_type_hints(left.pop()).items():
            names.add(name)
            found = {each for each in _records_in(hint) if each not in seen}
            seen |= found
            left += found
    return frozenset(names)


def _records_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and issubclass(hint, JsonRecord | RecordModel):
        yield hint
    for part in get_args(hint):
        yield from _records_in(part)


_WORDS = _field_names(
    *(records.MetricRecord, records.SeriesRestart, records.EventRecord, ArtifactLine, RunFacts),
    *(records.Heartbeat, records.Outcome, records.RequestAnswer, records.Provenance),
    *(records.RankPosition, records.ExitRecord, SaveSettled, SaveFailed, PhaseEntered, Resumed),
    *(StopAgreed, WeightsLoaded, RankTimes, StragglerFound, StragglerGone),
).union(get_args(records.RunEventKind), OWN_KINDS)
"""Names of our own fields and kinds. Other names, such as those of metrics, may have a secret."""


def _masked(value: object, mask: OutputMask) -> object:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return mask.text(value)
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{name: _masked(each, mask) for name, each in named.items()})
    if isinstance(value, dict):
        return {
            name if name in _WORDS else mask.text(name): _masked(each, mask)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(_masked(each, mask) for each in value)
    return value


def forget_secrets(run: WorkerRun) -> None:
    """Mask the secrets in the logs and records of an ended attempt, and remove their file.

    Files that a program keeps for itself, such as its outputs, stay as they are. The folder of
    torchrun is removed. If the secrets are unreadable, the logs and records cannot be masked, so
    they are removed too.
    """
    try:
        values = json.loads(read_small(run.delivered)).values()
    except FileNotFoundError:
        return
    except (OSError, ValueError, AttributeError):
        logger.exception("%s is unreadable: the logs and records are removed", run.delivered)
        _remove_kept(run)
    else:
        _mask_kept(run, OutputMask(map(str, values)))
    remove_tree(run.torchrun)
    with suppress(OSError):
        run.delivered.unlink()


def forget_left_secrets(store: NodeStore) -> None:
    """Forget the secrets of attempts that no process serves, such as after a failed launch."""
    served = {run.root.resolve() for run in map(store.run_of, store.live()) if run is not None}
    for folder in store.runs.glob("*/*"):
        run = WorkerRun(folder)
        if folder.resolve() not in served and run.delivered.is_file():
            forget_secrets(run)


def _mask_kept(run: WorkerRun, mask: OutputMask) -> None:
    if not mask:
        return
    for path in _kept_files(run):
        try:
            _mask_file(path, mask)
        except OSError:
            logger.exception("secrets in %s are not masked", path)


def _remove_kept(run: WorkerRun) -> None:
    for path in _kept_files(run):
        with suppress(OSError):  # such as a folder
            path.unlink()


def _kept_files(run: WorkerRun) -> Iterator[Path]:
    """Yield the files to which ranks, supervisor and launcher have written."""
    folders = (run.root, run.logs, run.rank_metrics, run.artifacts, run.requests, run.positions)
    before_ranks = {run.spec, run.attempt, run.launch, run.secret, run.identity, run.delivered}
    for folder in map(Path, folders):
        with suppress(OSError):
            for path in sorted(folder.iterdir()):
                if path not in before_ranks:
                    yield path


def _mask_file(path: Path, mask: OutputMask) -> None:
    """Mask a regular file in place; skip holes, which a rank may have made of any size.

    Raises:
        OSError: the file cannot be read or written.
    """
    found = path.lstat()
    # A file with another name could lie outside of the run directory.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        return
    is_record = path.suffix in RECORDS
    with open_regular(path, owner=found.st_uid, writing=True) as file:
        at, before = 0, b""
        while (start := _data_from(file, at)) is not None:
            file.seek(start)
            content = file.read(PART_BYTES)
            before = before if start == at else b""
            is_end = len(content) < PART_BYTES
            whole = content if is_end else content[: content.rfind(b"\n") + 1]
            # After a line that is longer than a part, a part may begin within a string.
            is_record = is_record and bool(whole)
            if is_record:
                masked = masked_lines(whole, mask)
            else:
                masked = mask.prefix(content, is_end=is_end, before=before)
            if masked != content[: len(masked)]:
                os.pwrite(file.fileno(), masked, start)
            if is_end:
                return
            assert masked, "a part is longer than every form of a secret"
            at = start + len(masked)
            before = (before + content[: len(masked)])[-mask.longest :]


def _data_from(file: BinaryIO, offset: int) -> int | None:
    """Return the offset of the next data; None if only holes follow."""
    try:
        return max(os.lseek(file.fileno(), offset, os.SEEK_DATA), offset)
    except OSError:  # ENXIO: the end of the file
        return None
