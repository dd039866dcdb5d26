"""Reads offline runs of wandb: logs of protocol buffers, framed in blocks like LevelDB's logs."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from trainyard.client.past_runs.past_run import DAMAGE, PastRun, refuse_pointer
from trainyard.run.other_tools.wire_format import (
    Value,
    as_bytes,
    as_double,
    as_signed,
    as_text,
    fields,
)

MAGIC = b":W&B"
FILE_HEADER = 7
BLOCK = 32 * 1024
HEADER = struct.Struct("<IHB")
DAMAGED, FULL, FIRST, MIDDLE, LAST = 0, 1, 2, 3, 4
LONGEST_RECORD = 16 * 2**20
"""Maximum size of a record in bytes; a longer record is skipped."""
MAX_CONFIG = 5_000
"""Maximum number of values read from a configuration or a summary."""
HEAD_RECORDS = 100
"""Number of records at the start of a file that are searched for the run's own record."""
STEP, TIME = "_step", "_timestamp"
HISTORY, SUMMARY, CONFIG, RUN, EXIT, ENVIRONMENT = 2, 3, 4, 17, 18, 26


def files_of_runs(paths: Iterable[Path]) -> Iterator[list[Path]]:
    """Yield the files of each run, sorted by start time; a resumed run has several files.

    Files belong to one run if they have the same id and project; an unreadable file is its own run.
    """
    runs: dict[tuple[str, ...], list[tuple[float, Path]]] = {}
    for path in paths:
        try:
            head = _head(path)
        except (OSError, ValueError):
            runs[(str(path),)] = [(0.0, path)]
            continue
        runs.setdefault((head.project, head.run_id), []).append((head.started, path))
    for found in runs.values():
        yield [path for _, path in sorted(found)]


@dataclass
class _Head:
    """Id, project and start time of the run in a file."""

    run_id: str
    project: str = ""
    started: float = 0.0


def _head(path: Path) -> _Head:
    with path.open("rb") as file:
        for record in islice(_records(file, PastRun("wandb", "", "")), HEAD_RECORDS):
            with contextlib.suppress(*DAMAGE):
                for number, value in fields(record):
                    if number == RUN:
                        return _head_of(as_bytes(value), _id_of(path))
    return _Head(_id_of(path))


def _head_of(record: memoryview, run_id: str) -> _Head:
    head = _Head(run_id)
    for number, value in fields(record):
        if number == 1:
            head.run_id = as_text(value)[:200] or run_id
        elif number == 3:
            head.project = as_text(value)
        elif number == 17:
            head.started = _timestamp(as_bytes(value))
    return head


def read_wandb(paths: Sequence[Path]) -> PastRun:
    """Return the run in files `run-<id>.wandb`; a damaged end causes a note instead of an error.

    Args:
        paths: the files of one run in the order of their starts. A later file continues an earlier
            file; its configuration, summary and end replace the earlier ones.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file was not written by wandb.
    """
    run = PastRun("wandb", _id_of(paths[0]), paths[0].stem)
    for path in paths:
        run.state, run.reason = "stopped", "no end is recorded"
        refuse_pointer(path)
        with path.open("rb") as file:
            for record in _records(file, run):
                try:
                    _apply(run, record)
                except DAMAGE:
                    run.note("damaged records are left out")
    if len(paths) > 1:
        run.note(f"this run consists of {len(paths)} files, the first is {paths[0]}")
    return run


def _id_of(path: Path) -> str:
    return path.stem.removeprefix("run-")


def _records(file: BinaryIO, run: PastRun) -> Iterator[bytes]:
    """Yield whole records; after a damaged block, continue with the next block."""
    head = file.read(FILE_HEADER)
    if head[:4] != MAGIC:
        raise ValueError("it does not start like a log of wandb")
    parts: list[bytes] = []
    for kind, content in _parts(file, head):
        if kind in (FULL, FIRST):
            parts = [content]
        elif kind == DAMAGED:
            run.note("the log is cut off or damaged, and is read as far as possible")
            parts = []
        elif parts:  # without `parts`, the start of the record was damaged
            parts.append(content)
        if sum(map(len, parts)) > LONGEST_RECORD:
            run.note("records of more than 16 MiB are left out")
            parts = []
        elif kind in (FULL, LAST) and parts:
            yield b"".join(parts)
            parts = []


def _parts(file: BinaryIO, head: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of each part of a record, block by block."""
    block, place = head + file.read(BLOCK - len(head)), len(head)
    while block:
        while place + HEADER.size <= len(block):
            checksum, length, kind = HEADER.unpack_from(block, place)
            place += HEADER.size
            content = block[place : place + length]
            if kind == 0 and length == 0:
                break  # padding
            if len(content) < length or zlib.crc32(content, zlib.crc32(bytes([kind]))) != checksum:
                yield DAMAGED, b""
                break
            place += length
            yield kind, content
        block, place = file.read(BLOCK), 0


def _apply(run: PastRun, record: bytes) -> None:
    apply = {
        HISTORY: _history,
        SUMMARY: _summary,
        CONFIG: _config,
        RUN: _run,
        EXIT: _exit,
        ENVIRONMENT: _environment,
    }
    for number, value in fields(record):
        found: Callable[[PastRun, memoryview], None] | None = apply.get(number)
        if found is not None:
            found(run, as_bytes(value))


def _history(run: PastRun, history: memoryview) -> None:
    values: dict[str, float] = {}
    step: float | None = None
    for number, value in fields(history):
        if number == 1:
            name, item = _item(as_bytes(value))
            if not isinstance(item, dict) and (number_of := _number(item)) is not None:
                values[name] = number_of
            elif isinstance(item, dict):
                values |= _numbers(name, item)
        elif number == 2:
            step = float(next((as_signed(v) for n, v in fields(as_bytes(value)) if n == 1), 0))
    step = values.pop(STEP, step)
    time = values.pop(TIME, run.ended or run.started or 0.0)
    if step is None:
        return
    run.ended = max(run.ended or time, time)
    for name, number_of in values.items():
        if not name.startswith("_"):
            run.add(name, int(step), time=time, value=number_of)


def _numbers(path: str, value: dict[str, object]) -> dict[str, float]:
    """Return the numbers in a nested value by path; media (with a `_type`) have no numbers."""
    if "_type" in value:
        return {}
    found: dict[str, float] = {}
    for key, inner in value.items():
        number = _number(inner)
        if number is not None:
            found[f"{path}.{key}"] = number
        elif isinstance(inner, dict) and path.count(".") < 10:
            found |= _numbers(f"{path}.{key}", inner)
    return found


def _summary(run: PastRun, summary: memoryview) -> None:
    for number, value in fields(summary):
        if number == 1 and len(run.summary) < MAX_CONFIG:
            name, item = _item(as_bytes(value))
            found = _number(item)
            if found is not None and not name.startswith("_"):
                run.summary[name] = found


def _config(run: PastRun, config: memoryview) -> None:
    for number, value in fields(config):
        if number == 1 and len(run.config) < MAX_CONFIG:
            name, item = _item(as_bytes(value))
            if not name.startswith("_wandb"):
                run.config[name] = item


def _run(run: PastRun, record: memoryview) -> None:
    tags = []
    for number, value in fields(record):
        if number == 1:
            run.run_id = as_text(value)[:200] or run.run_id
        elif number == 4:
            _config(run, as_bytes(value))
        elif number == 8:
            run.name = as_text(value) or run.name
        elif number == 9:
            run.description = as_text(value)
        elif number == 10:
            tags.append(as_text(value))
        elif number == 17:
            started = _timestamp(as_bytes(value))
            run.started = started if run.started is None else min(run.started, started)
    run.tags = tuple(tags[:100]) or run.tags


def _exit(run: PastRun, record: memoryview) -> None:
    code = next((as_signed(value) for number, value in fields(record) if number == 1), 0)
    run.state = "succeeded" if code == 0 else "failed"
    run.reason = "" if code == 0 else f"exit code {code}"


def _environment(run: PastRun, record: memoryview) -> None:
    arguments: list[str] = []
    program = ""
    for number, value in fields(record):
        if number == 5:
            arguments.append(as_text(value))
        elif number == 6:
            program = as_text(value)
    if program:
        run.command = (program, *arguments)


def _item(item: memoryview) -> tuple[str, object]:
    """Return name and value of an item; the parts of a nested name are joined by dots."""
    names: list[str] = []
    found: object = None
    for number, value in fields(item):
        if number in (1, 2):
            names.append(as_text(value))
        elif number in (8, 16):
            found = json.loads(as_text(value))
        elif number in (4, 5, 6, 7):
            found = _typed(number, value)
    return ".".join(names), found


def _typed(number: int, value: Value) -> object:
    if number == 7:
        return as_text(value)
    if number == 6:
        return as_double(value)
    signed = as_signed(value)
    return bool(signed) if number == 4 else _zigzag(signed)


def _zigzag(value: int) -> int:
    unsigned = value % 2**64
    return (unsigned >> 1) ^ -(unsigned & 1)


def _timestamp(record: memoryview) -> float:
    parts = {number: as_signed(value) for number, value in fields(record)}
    return parts.get(1, 0) + parts.get(2, 0) / 1e9


def _number(value: object) -> float | None:
    """Return a value as a number; wandb writes some NaN and infinite values as text."""
    if isinstance(value, bool | int | float):
        try:
            return float(value)
        except OverflowError:
            return None
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(str(value))
    return None
