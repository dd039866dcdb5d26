"""Lines of `metrics.jsonl` and `events.jsonl`, read and checked for what the store can hold.

What stops a line from being read decides what follows. The sender can mend a chunk that is damaged
or ends within a line: the report is refused (422). A whole line that is no record will never be
one, so it must not hold the spool up for ever: alone in its chunk it is skipped, acknowledged and
told by an event. Among others it refuses the report, so that a sender and a server that do not
understand each other lose nothing by the thousand; the refusal names the line's first byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from pydantic import ValidationError

from server.checkpoints.manifests import DIGEST, check_manifest, check_moment
from server.errors import InvalidRequestError
from server.ingest.offsets import SpoolBytes
from trainyard.base.ids import is_id
from trainyard.base.problems import UNKNOWN_FIELD
from trainyard.protocol.manifest import (
    Manifest,
    SaveFailed,
    SaveSettled,
)
from trainyard.protocol.record_parser import check_record, parse_record
from trainyard.protocol.rest.event_data import PhaseEntered, Resumed, StopAgreed, WeightsLoaded
from trainyard.run.records import EventRecord, MetricRecord, RequestAnswer, RunEventKind

Record = TypeVar("Record")

METRIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,99}")


@dataclass(frozen=True)
class Skipped:
    """A line that was left out."""

    file: str
    offset: int
    """Its first byte."""
    error: str


@dataclass(frozen=True)
class ParsedLines(Generic[Record]):
    """The lines of a piece."""

    records: list[Record]
    skipped: list[Skipped]


TrainerEvent = PhaseEntered | WeightsLoaded | Resumed | StopAgreed
TRAINER_EVENTS: Mapping[RunEventKind, type[TrainerEvent]] = {
    "phase": PhaseEntered,
    "weights_loaded": WeightsLoaded,
    "resumed": Resumed,
    "stop_agreed": StopAgreed,
}


@dataclass(frozen=True)
class RunEvent:
    """A line of `events.jsonl`, with the record that its data holds."""

    line: EventRecord
    manifest: Manifest | None = None
    """Of a commit."""
    settled: SaveSettled | None = None
    save_failed: SaveFailed | None = None
    """Of a save whose end the training loop has taken note of."""
    request_id: str | None = None
    answer: RequestAnswer | None = None
    """Of an answered request."""
    event: TrainerEvent | None = None
    """Of the other kinds, which have no effect but an event."""


def read_lines(piece: SpoolBytes, parse: Callable[[bytes], Record]) -> ParsedLines[Record]:
    """Return the records of a piece; `parse` raises ValueError for what is none.

    Raises:
        InvalidRequestError: the piece ends within a line, or one of several lines is no record.
    """
    if not piece.content.endswith(b"\n"):
        raise InvalidRequestError.at(
            f"{piece.pointer}/content", f"{piece.file} ends within a line, at byte {piece.end}"
        )
    texts = piece.content[:-1].split(b"\n")
    records: list[Record] = []
    offset = piece.start
    for text in texts:
        try:
            records.append(parse(text))
        except ValueError as error:
            skipped = Skipped(piece.file, offset, _reason(error))
            if len(texts) > 1:
                raise InvalidRequestError.at(
                    f"{piece.pointer}/content",
                    f"{piece.file} holds a line at byte {offset} that cannot be read "
                    f"({skipped.error}); sent alone it is skipped",
                ) from None
            return ParsedLines([], [skipped])
        offset += len(text) + 1
    return ParsedLines(records, [])


def metric_line(text: bytes) -> MetricRecord:
    """Read a line of `metrics.jsonl`.

    Raises:
        ValueError: it is none, or holds a number or a name that the store cannot keep.
    """
    line = parse_record(MetricRecord, text)
    check_moment(line.step, line.time)
    for name in line.values:
        _check_name(name)
    if line.data_digest is not None and not DIGEST.fullmatch(line.data_digest):
        raise ValueError(f"data_digest {line.data_digest[:40]!r} is no digest")
    return line


def event_line(text: bytes, *, job_id: str, attempt: int) -> RunEvent:
    """Read a line of `events.jsonl` of this attempt.

    Raises:
        ValueError: it is none, or announces a commit of another attempt.
    """
    line = parse_record(EventRecord, text)
    check_moment(line.step, line.time)
    if line.kind == "checkpoint_committed":
        return RunEvent(line, manifest=_manifest(line, job_id=job_id, attempt=attempt))
    if line.kind == "checkpoint_settled":
        return RunEvent(line, settled=SaveSettled.model_validate(line.data))
    if line.kind == "save_failed":
        return RunEvent(line, save_failed=SaveFailed.model_validate(line.data))
    if line.kind == "request_answered":
        data = dict(line.data)
        request_id = str(data.pop("request_id", ""))
        if not is_id(request_id):
            raise ValueError(f"request_id {request_id[:40]!r} is no id")
        return RunEvent(line, request_id=request_id, answer=check_record(RequestAnswer, data))
    data = {**line.data, "step": line.step, "time": line.time}
    # A newer trainer may add fields.
    return RunEvent(line, event=TRAINER_EVENTS[line.kind].model_validate(data, extra="ignore"))


def _manifest(line: EventRecord, *, job_id: str, attempt: int) -> Manifest:
    manifest = Manifest.of_event(line.data)
    check_manifest(manifest, job_id=job_id, attempt=attempt)
    return manifest


@lru_cache(maxsize=4096)  # every line of a run holds the same names
def _check_name(name: str) -> None:
    if not METRIC_NAME.fullmatch(name):
        raise ValueError(f"{name[:120]!r} is no name of a metric")


def _reason(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    detail = "unknown field" if first["type"] in UNKNOWN_FIELD else first["msg"]
    return f"{place}: {detail}" if place else detail
