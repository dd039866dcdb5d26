"""What a report brings that is new: checked and parsed before the store is locked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from server.errors import InvalidRequestError
from server.ingest.jsonl import ParsedLines, RunEvent, Skipped, event_line, metric_line, read_lines
from server.ingest.offsets import SpoolBytes, fresh
from trainyard.run.records import MetricRecord

EVENT_LINES = 500
"""Lines of `events.jsonl` that one report stores; the sender goes on after them."""


@dataclass(frozen=True)
class ReportSource:
    """Where a report comes from: one node's share of an attempt."""

    job_id: str
    number: int
    """Number of the attempt."""
    node: str
    node_rank: int
    ranks: range
    """Global ranks on the node."""
    world_size: int


@dataclass
class Delivery:
    """New content of one report, by kind."""

    pieces: list[SpoolBytes]
    """What will be acknowledged."""
    metrics: list[MetricRecord] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    output: list[tuple[int, bytes]] = field(default_factory=list)
    """Global rank and bytes."""
    skipped: list[Skipped] = field(default_factory=list)


def read_delivery(
    pieces: Sequence[SpoolBytes], offsets: Mapping[str, int], source: ReportSource
) -> Delivery:
    """Parse what is not stored yet.

    Args:
        pieces: the report's chunks.
        offsets: what is stored of each file.
        source: where the report comes from.

    Raises:
        InvalidRequestError: a file is not this node's to report, or a line cannot be read.
    """
    for piece in pieces:
        _check_file(piece, source)
    delivery = Delivery(fresh([_first_lines(piece) for piece in pieces], offsets))
    as_event = partial(event_line, job_id=source.job_id, attempt=source.number)
    for piece in delivery.pieces:
        found: ParsedLines[MetricRecord] | ParsedLines[RunEvent]
        if piece.file == "metrics":
            found = read_lines(piece, metric_line)
            delivery.metrics += found.records
        elif piece.file == "events":
            found = read_lines(piece, as_event)
            delivery.events += found.records
        else:
            delivery.output.append((_rank(piece.file), piece.content))
            continue
        delivery.skipped += found.skipped
    return delivery


def _check_file(piece: SpoolBytes, source: ReportSource) -> None:
    if piece.file in {"metrics", "events"}:
        if source.node_rank == 0:
            return
        detail = f"{piece.file} is reported by the node of global rank 0, not by {source.node}"
    elif _rank(piece.file) in source.ranks:
        return
    else:
        first, last = source.ranks.start, source.ranks.stop - 1
        detail = f"{piece.file} is of no rank on {source.node}: {first} to {last}"
    raise InvalidRequestError.at(piece.pointer.replace("/content", "") + "/file", detail)


def _rank(file: str) -> int:
    return int(file.removeprefix("log:"))


def _first_lines(piece: SpoolBytes) -> SpoolBytes:
    """Return the piece, or of many events the first ones: each is a row, some change a catalog."""
    if piece.file != "events" or piece.content.count(b"\n") <= EVENT_LINES:
        return piece
    content = b"\n".join([*piece.content.split(b"\n", EVENT_LINES)[:EVENT_LINES], b""])
    return replace(piece, content=content)
