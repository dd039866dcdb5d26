"""Read scalars from TensorBoard's event files, from a given record on, without TensorBoard.

A file is a sequence of records: length (8 bytes), checksum of the length (4), content, checksum of
the content (4). A record is an `Event` with a summary of values by tag. Images, texts and graphs
are skipped; a record that is too long for scalars is skipped without being read.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from trainyard.run.other_tools.wire_format import (
    Value,
    WireError,
    as_bytes,
    as_double,
    as_signed,
    as_text,
    fields,
    varints,
)

NAME_PART = "tfevents"
"""Part of the name of every event file."""
LONGEST_READ = 256 * 1024
"""Maximum size of a record that is read, in bytes; a record with 1,000 scalars has 50 KiB."""
LONGEST_TAG = 500
"""Maximum length of a tag, in characters; a longer tag is cut."""
MAX_VALUES = 10_000
"""Maximum number of values to read from one record."""
HEADER = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
SESSION_LOG, SESSION_START = 7, 1
"""Number of an event's field for the session log, and the status in a session log that marks the
start of a session."""
FLOAT, DOUBLE = 1, 2
INTEGERS = {3: "i", 4: "B", 5: "h", 6: "b", 9: "q"}
"""`struct` format of integers in a tensor, by type code."""


class Scalar(NamedTuple):
    """One value in an event file."""

    tag: str
    step: int
    time: float
    """Unix time in seconds."""
    value: float


class Restart(NamedTuple):
    """Start of a session (`SessionLog.START`)."""

    step: int
    """Step at which the session starts. From this step on, points of earlier sessions in the same
    folder are discarded."""


@dataclass
class EventSlice:
    """Complete records in a range of an event file."""

    end: int
    """Offset after the last record."""
    scalars: list[Scalar | Restart] = field(default_factory=list)
    """Scalars and restarts, in the order of the file."""
    hyperparameters: dict[str, object] = field(default_factory=dict)
    """Hyperparameters from the plugin `hparams`."""
    unreadable: int = 0
    """Number of skipped records with damaged content."""
    broken: bool = False
    """Whether the length of the next record is damaged, so that later records cannot be found."""


def read_events(file: BinaryIO, *, start: int, limit: int) -> EventSlice:
    """Return the scalars of the complete records from an offset on.

    Args:
        file: a seekable event file.
        start: offset of a record: 0, or `end` of an earlier result.
        limit: number of bytes after which no further record is read.

    Raises:
        OSError: the file cannot be read.
    """
    size = file.seek(0, io.SEEK_END)
    found = EventSlice(end=start)
    while found.end < min(start + limit, size):
        file.seek(found.end)
        head = file.read(HEADER.size)
        if len(head) < HEADER.size:
            break
        length, checksum = HEADER.unpack(head)
        if checksum != masked_crc32c(head[:8]):
            found.broken = True
            break
        following = found.end + HEADER.size + length + CHECKSUM.size
        if following > size:  # the record is being written
            break
        if length <= LONGEST_READ:
            content = file.read(length)
            checked = file.read(CHECKSUM.size)
            if len(checked) < CHECKSUM.size:
                break
            _add(found, content, CHECKSUM.unpack(checked)[0])
        found.end = following
    return found


def _add(found: EventSlice, content: bytes, checksum: int) -> None:
    scalars: list[Scalar | Restart] = []
    try:
        if checksum != masked_crc32c(content):
            raise WireError("the checksum differs")
        for index, one in enumerate(_values(content, found.hyperparameters)):
            if index >= MAX_VALUES:
                break
            scalars.append(one)
    except (WireError, struct.error):
        found.unreadable += 1
        return
    found.scalars += scalars


def _values(content: bytes, hyperparameters: dict[str, object]) -> Iterator[Scalar | Restart]:
    time, step, starts = 0.0, 0, False
    summaries = []
    for number, value in fields(content):
        if number == 1:
            time = as_double(value)
        elif number == 2:
            step = as_signed(value)
        elif number == 5:
            summaries.append(as_bytes(value))
        elif number == SESSION_LOG:
            starts = (1, SESSION_START) in fields(as_bytes(value))
    if starts:
        yield Restart(step)
    if math.isfinite(time):
        for summary in summaries:
            yield from _scalars(summary, step, time=time, hyperparameters=hyperparameters)


def _scalars(
    summary: memoryview, step: int, *, time: float, hyperparameters: dict[str, object]
) -> Iterator[Scalar]:
    for number, value in fields(summary):
        if number == 1:
            tag, result = _value(as_bytes(value), hyperparameters)
            if result is not None:
                yield Scalar(tag[:LONGEST_TAG], step, time, result)


def _value(content: memoryview, hyperparameters: dict[str, object]) -> tuple[str, float | None]:
    tag, result = "", None
    for number, value in fields(content):
        if number == 1:
            tag = as_text(value)
        elif number == 2:
            result = as_double(value)
        elif number == 8:
            result = _scalar_of(as_bytes(value))
        elif number == 9:
            _read_metadata(as_bytes(value), hyperparameters)
    return tag, result


def _scalar_of(tensor: memoryview) -> float | None:
    """Return the number in a tensor without dimensions; None for other tensors."""
    kind, content, listed = 0, b"", list[Value]()
    for number, value in fields(tensor):
        if number == 1:
            kind = as_signed(value)
        elif number == 2:
            if any(number == 2 for number, _ in fields(as_bytes(value))):
                return None  # the tensor has dimensions
        elif number == 4:
            content = bytes(as_bytes(value))
        elif number in (5, 6, 7, 10):
            listed.append(value)
    if kind in (FLOAT, DOUBLE):
        given = content or (bytes(as_bytes(listed[0])) if listed else b"")
        size = 4 if kind == FLOAT else 8
        return as_double(memoryview(given)[:size]) if len(given) >= size else None
    return _integer_of(kind, content, listed) if kind in INTEGERS else None


def _integer_of(kind: int, content: bytes, listed: list[Value]) -> float | None:
    if content:
        return float(struct.unpack_from(f"<{INTEGERS[kind]}", content)[0])
    if not listed:
        return None
    first = listed[0]
    return float(as_signed(first if isinstance(first, int) else next(varints(first), 0)))


def _read_metadata(metadata: memoryview, found: dict[str, object]) -> None:
    """Add the hyperparameters that the plugin `hparams` stored in a summary's metadata."""
    for number, value in fields(metadata):
        if number != 1:
            continue
        plugin = dict(fields(as_bytes(value)))
        if 1 in plugin and 2 in plugin and as_text(plugin[1]) == "hparams":
            for kind, session in fields(as_bytes(plugin[2])):
                if kind == 3:  # the start of a session
                    _read_session(as_bytes(session), found)


def _read_session(session: memoryview, found: dict[str, object]) -> None:
    for number, value in fields(session):
        if number == 1 and len(found) < MAX_VALUES:
            entry = dict(fields(as_bytes(value)))
            if 1 in entry and 2 in entry:
                found[as_text(entry[1])[:LONGEST_TAG]] = _plain(as_bytes(entry[2]))


def _plain(value: memoryview) -> object:
    """Return a `google.protobuf.Value` as a Python value; None for a list or struct."""
    for number, content in fields(value):
        if number == 2:
            return as_double(content)
        if number == 3:
            return as_text(content)
        if number == 4:
            return bool(content)
    return None


def masked_crc32c(content: bytes) -> int:
    """Return the checksum of event files: CRC-32C (RFC 3720), rotated by 15 bits and offset."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _entry(index: int) -> int:
    for _ in range(8):
        index = (index >> 1) ^ (0x82F63B78 if index & 1 else 0)
    return index


_TABLE = [_entry(index) for index in range(256)]
