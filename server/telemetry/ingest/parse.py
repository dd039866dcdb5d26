"""Unpacks the chunks of a report, cuts off stored bytes and parses the new bytes into records.

The cause of an unreadable line decides the outcome. A chunk that is damaged or ends within a line
can be sent again, so the report is rejected (422). A complete but invalid line stays invalid and
must not block the spool forever. If the invalid line is alone in its chunk, it is skipped,
acknowledged and recorded by an event. If its chunk has other lines, the report is rejected with an
error that names the line's first byte. The sender can then send the line alone, so a sender and a
server of different versions lose single lines instead of thousands. An invalid line in the file of
one process of a program (`metrics:<process>`) or in the file of artifacts is always skipped.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from pydantic import ValidationError

from server.core.errors import InvalidRequestError
from server.jobs.attempts.reports import ReportedShare
from server.jobs.checkpoints.catalog import check_manifest, check_moment
from server.telemetry.ingest.metric_lines import NAMES, event_file_line, metric_line
from trainyard.base.ids import is_id
from trainyard.base.problems import UNKNOWN_FIELD
from trainyard.protocol.manifest import Manifest, SaveFailed, SaveSettled, manifest_of_event
from trainyard.protocol.record_parser import check_record, parse_record
from trainyard.protocol.rest.event_data import (
    LineSkipped,
    PhaseEntered,
    Resumed,
    StopAgreed,
    WeightsLoaded,
)
from trainyard.protocol.rest.metrics_and_logs import RankTimes, StragglerFound, StragglerGone
from trainyard.protocol.worker_messages import ARTIFACTS, EVENT_FILES, MAX_CHUNK_BYTES, Chunk
from trainyard.run.artifacts.artifact_records import ArtifactLine
from trainyard.run.artifacts.artifact_records import check_record as check_artifact
from trainyard.run.checkpoints.program_manifest import ProgramManifest
from trainyard.run.records import EventRecord, MetricRecord, RequestAnswer, RunEventKind

Record = TypeVar("Record")

MAX_CONTENT_BYTES = 4 * MAX_CHUNK_BYTES
"""Maximum total size of a report's chunks, in bytes."""
MAX_OFFSET = 2**62
METRICS = frozenset({"metrics", EVENT_FILES})
"""Names of the files with metrics."""
EVENT_LINES, RESTART_LINES = 500, 5
"""Maximum number of lines of `events.jsonl`, and of restarts in event files, per chunk. The sender
sends the remaining lines in the next reports. An event adds a row and may change the catalog; a
restart reads and writes the tails of up to 500 series.
"""
MAX_SKIPPED = 100
"""Maximum number of events for unreadable lines per attempt; a program can write any number of
unreadable lines."""
Comparison = StragglerFound | StragglerGone | RankTimes
"""Results of the trainer's comparison of its ranks."""
TrainerEvent = PhaseEntered | WeightsLoaded | Resumed | StopAgreed | Comparison
TRAINER_EVENTS: Mapping[RunEventKind, type[TrainerEvent]] = {
    "phase": PhaseEntered,
    "weights_loaded": WeightsLoaded,
    "resumed": Resumed,
    "stop_agreed": StopAgreed,
    "straggler_found": StragglerFound,
    "straggler_gone": StragglerGone,
    "rank_times": RankTimes,
}


@dataclass(frozen=True)
class AnsweredRequest:
    """The training loop's answer to a request."""

    request_id: str
    answer: RequestAnswer


RunEvent = Manifest | ProgramManifest | SaveSettled | SaveFailed | AnsweredRequest | TrainerEvent
"""Content of a line of `events.jsonl`; a line about a commit has a manifest."""


@dataclass(frozen=True)
class UnpackedChunk:
    """The unpacked bytes of a chunk, which is a part of one file."""

    pointer: str
    """JSON pointer to the chunk within the report."""
    file: str
    start: int
    content: bytes

    @property
    def end(self) -> int:
        """Offset in the file after the last byte of the chunk."""
        return self.start + len(self.content)


@dataclass
class ReportContent:
    """The new content of one report, by kind."""

    chunks: list[UnpackedChunk]
    """Chunks with the bytes to acknowledge."""
    metrics: list[MetricRecord] = field(default_factory=list)
    of_ranks: list[tuple[int, MetricRecord]] = field(default_factory=list)
    """Pairs of a rank and its record, for a program with several processes."""
    events: list[RunEvent] = field(default_factory=list)
    event_offsets: list[int] = field(default_factory=list)
    """For each event, the offset of the first byte of its line."""
    artifacts: list[ArtifactLine] = field(default_factory=list)
    output: list[tuple[int, bytes]] = field(default_factory=list)
    """Global ranks with the bytes of their output."""
    skipped: list[LineSkipped] = field(default_factory=list)

    def hold_events(self, first: int) -> None:
        """Drop an event and all later ones without acknowledgement, so the sender repeats them."""
        offset = self.event_offsets[first]
        del self.events[first:], self.event_offsets[first:]
        self.chunks = [
            replace(chunk, content=chunk.content[: offset - chunk.start])
            if chunk.file == "events"
            else chunk
            for chunk in self.chunks
            if chunk.file != "events" or chunk.start < offset
        ]
        self.skipped = [s for s in self.skipped if s.file != "events" or s.offset < offset]


def unpack(chunks: Sequence[Chunk]) -> list[UnpackedChunk]:
    """Return the unpacked bytes of a report's chunks.

    Raises:
        InvalidRequestError: a chunk is too large or is not zlib in base64, its size is not
            `end - start` bytes, or the report exceeds `MAX_CONTENT_BYTES`.
    """
    # Check all sizes before any chunk is inflated, because a negative size would lower the sum.
    total = sum(_size(f"/chunks/{index}", chunk) for index, chunk in enumerate(chunks))
    if total > MAX_CONTENT_BYTES:
        raise InvalidRequestError.at(
            "/chunks", f"{total} bytes in one report; at most {MAX_CONTENT_BYTES}"
        )
    return [_unpack(f"/chunks/{index}", chunk) for index, chunk in enumerate(chunks)]


def parse_chunks(chunks: Sequence[UnpackedChunk], share: ReportedShare) -> ReportContent:
    """Parse the bytes after the acknowledged offsets of the share.

    Raises:
        InvalidRequestError: one of the files belongs to another node, a chunk ends within a line,
            or a line cannot be read.
    """
    for chunk in chunks:
        _check_file(chunk, share)
    content = ReportContent(_fresh([_first_lines(chunk) for chunk in chunks], share.acknowledged))
    as_event = partial(event_line, job_id=share.job_id, attempt=share.number)
    for chunk in content.chunks:
        if chunk.file in METRICS:
            parse = event_file_line if chunk.file == EVENT_FILES else metric_line
            records = [*_parse_lines(chunk, parse, content.skipped).values()]
            content.metrics += records
            content.of_ranks += ((0, record) for record in records if record.ranks > 1)
        elif chunk.file.startswith("metrics:"):
            rank = _rank(chunk.file)
            of_rank = _parse_lines(chunk, metric_line, content.skipped, refuses=False)
            content.of_ranks += ((rank, record) for record in of_rank.values())
        elif chunk.file == ARTIFACTS:
            lines = _parse_lines(chunk, artifact_line, content.skipped, refuses=False)
            content.artifacts += lines.values()
        elif chunk.file == "events":
            events = _parse_lines(chunk, as_event, content.skipped)
            content.events += events.values()
            content.event_offsets += events
        else:
            content.output.append((_rank(chunk.file), chunk.content))
    return content


def artifact_line(text: bytes) -> ArtifactLine:
    """Parse a line of `artifacts.jsonl`.

    Raises:
        ValueError: the line is not an artifact, or the store cannot keep its number or name.
    """
    line = parse_record(ArtifactLine, text)
    if line.record is not None:
        check_moment(line.record.step or 0, line.record.time)
        check_artifact(line.record)
    return line


def event_line(text: bytes, *, job_id: str, attempt: int) -> RunEvent:
    """Parse a line of `events.jsonl` of this attempt.

    Raises:
        ValueError: the line is not an event, or announces a commit of another attempt.
    """
    line = parse_record(EventRecord, text)
    check_moment(line.step, line.time)
    if line.kind == "checkpoint_committed":
        manifest = manifest_of_event(line.data)
        check_manifest(manifest, job_id=job_id, attempt=attempt)
        return manifest
    if line.kind == "checkpoint_settled":
        return SaveSettled.model_validate(line.data)
    if line.kind == "save_failed":
        return SaveFailed.model_validate(line.data)
    if line.kind == "request_answered":
        data = dict(line.data)
        request_id = str(data.pop("request_id", ""))
        if not is_id(request_id):
            raise ValueError(f"request_id {request_id[:40]!r} is not an id")
        return AnsweredRequest(request_id, check_record(RequestAnswer, data))
    data = {**line.data, "step": line.step, "time": line.time}
    # A newer trainer may add fields, so unknown fields are ignored.
    return TRAINER_EVENTS[line.kind].model_validate(data, extra="ignore")


def _size(pointer: str, chunk: Chunk) -> int:
    size = chunk.end - chunk.start
    if not 0 <= size <= MAX_CHUNK_BYTES or chunk.end > MAX_OFFSET:
        raise InvalidRequestError.at(
            f"{pointer}/end",
            f"{chunk.end} after start={chunk.start}: a chunk holds up to {MAX_CHUNK_BYTES} bytes",
        )
    return size


def _unpack(pointer: str, chunk: Chunk) -> UnpackedChunk:
    size = chunk.end - chunk.start
    try:
        content = _inflated(base64.b64decode(chunk.content, validate=True), limit=size + 1)
    except (ValueError, zlib.error) as error:
        raise InvalidRequestError.at(
            f"{pointer}/content", f"is not a zlib stream in base64: {error}"
        ) from None
    if len(content) != size:
        found = f"more than {size}" if len(content) > size else str(len(content))
        raise InvalidRequestError.at(
            f"{pointer}/content", f"holds {found} bytes, but end - start = {size}"
        )
    return UnpackedChunk(pointer, chunk.file, chunk.start, content)


def _inflated(packed: bytes, *, limit: int) -> bytes:
    """Return at most `limit` decompressed bytes, as a guard against decompression bombs."""
    stream = zlib.decompressobj()
    content = stream.decompress(packed, limit)
    if len(content) < limit and not stream.eof:
        raise ValueError("the stream is cut off")
    if stream.unused_data:
        raise ValueError("bytes follow the stream")
    return content


def _check_file(chunk: UnpackedChunk, share: ReportedShare) -> None:
    if chunk.file == ARTIFACTS:  # each node has its own file
        return
    if chunk.file in {*METRICS, "events"}:
        if share.node_rank == 0:
            return
        detail = f"{chunk.file} is reported by the node of global rank 0, not by {share.node}"
    elif _rank(chunk.file) in share.ranks or chunk.file == f"metrics:{share.node_rank}":
        return
    else:
        first, last = share.ranks.start, share.ranks.stop - 1
        detail = f"{chunk.file} is of no rank on {share.node}: {first} to {last}"
    raise InvalidRequestError.at(f"{chunk.pointer}/file", detail)


def is_log(file: str) -> bool:
    """Return whether a file of the spool is the output of a rank."""
    return file.startswith("log:")


def _rank(file: str) -> int:
    return int(file.partition(":")[2])


def _first_lines(chunk: UnpackedChunk) -> UnpackedChunk:
    """Cut a chunk after `EVENT_LINES` events or `RESTART_LINES` restarts."""
    if chunk.file == EVENT_FILES:
        return _to_restart(chunk)
    if chunk.file != "events" or chunk.content.count(b"\n") <= EVENT_LINES:
        return chunk
    content = b"\n".join([*chunk.content.split(b"\n", EVENT_LINES)[:EVENT_LINES], b""])
    return replace(chunk, content=content)


def _to_restart(chunk: UnpackedChunk) -> UnpackedChunk:
    end = 0
    for _ in range(RESTART_LINES):
        if (at := chunk.content.find(NAMES, end)) < 0:
            return chunk
        end = chunk.content.find(b"\n", at) + 1
        if not end:
            return chunk
    return replace(chunk, content=chunk.content[:end])


def _fresh(chunks: Iterable[UnpackedChunk], offsets: Mapping[str, int]) -> list[UnpackedChunk]:
    """Return the new bytes in order; leave out stored bytes, and bytes after a gap."""
    reached = dict(offsets)
    new = []
    for chunk in chunks:
        offset = reached.get(chunk.file, 0)
        if chunk.start <= offset < chunk.end:
            new.append(replace(chunk, start=offset, content=chunk.content[offset - chunk.start :]))
            reached[chunk.file] = chunk.end
    return new


def _parse_lines(
    chunk: UnpackedChunk,
    parse: Callable[[bytes], Record],
    skipped: list[LineSkipped],
    *,
    refuses: bool = True,
) -> dict[int, Record]:
    """Return records by the offset of their first byte; add unreadable lines to `skipped`.

    `skipped` gets at most `MAX_SKIPPED` lines, because a report may have millions of such lines. If
    `refuses` is true, an invalid line rejects the report, unless the chunk has only this line. For
    the lines of a program's processes, `refuses` is false, because a million of these lines may be
    invalid and each rejection costs two reports.

    Raises:
        InvalidRequestError: the chunk ends within a line, or `refuses` applies to an invalid line.
    """
    if not chunk.content.endswith(b"\n"):
        raise InvalidRequestError.at(
            f"{chunk.pointer}/content", f"{chunk.file} ends within a line, at byte {chunk.end}"
        )
    texts = chunk.content[:-1].split(b"\n")
    records: dict[int, Record] = {}
    offset = chunk.start
    for text in texts:
        try:
            records[offset] = parse(text)
        except ValueError as error:
            if refuses and len(texts) > 1:
                raise InvalidRequestError.at(
                    f"{chunk.pointer}/content",
                    f"{chunk.file} holds a line at byte {offset} that cannot be read "
                    f"({_reason(error)}); sent alone it is skipped",
                ) from None
            if len(skipped) < MAX_SKIPPED:
                skipped.append(LineSkipped(file=chunk.file, offset=offset, error=_reason(error)))
        offset += len(text) + 1
    return records


def _reason(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    detail = "unknown field" if first["type"] in UNKNOWN_FIELD else first["msg"]
    return f"{place}: {detail}" if place else detail
