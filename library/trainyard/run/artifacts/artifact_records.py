"""Records of images, histograms and files, written by a process and by its supervisor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

from trainyard.run.limits import LAST_STEP, Bounds, Cut, Number
from trainyard.run.record_base import JsonRecord

IMAGE, HISTOGRAM, FILE, OUTPUT, TABLE = "image", "histogram", "file", "output", "table"
OWN_KINDS = frozenset({IMAGE, HISTOGRAM})
"""Kinds of artifacts that `log_artifact` rejects, because they have methods of their own."""
CONTENT_NAME = re.compile(r"[a-z0-9-]{1,80}")
"""Legal names of a content file in `artifacts/`."""
LONGEST_NAME, LONGEST_KIND, LONGEST_CAPTION = 200, 64, 1000
TABLE_ENDING = ".json"
"""Ending of a table's name."""
MAX_BINS = 512
MAX_IMAGE_BYTES = 16 * 1024 * 1024
"""Maximum size of an encoded image, in bytes."""
MAX_FILE_BYTES = 256 * 1024 * 1024
"""Maximum size of a file, in bytes; a larger file belongs in a checkpoint or on a storage root."""
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]+")
"""Characters that are illegal in a name; `/` separates the parts of a name."""
_KIND = re.compile(f"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{LONGEST_KIND - 1}}}")
_NO_KIND = re.compile(r"[^A-Za-z0-9_.-]+")

DropReason = Literal[
    "disk_full", "queue_full", "spool_full", "quota", "too_many", "too_large", "unreadable"
]
"""Reason why data was dropped: lack of disk space on the node, a full writer queue, a full spool,
the job's limit on bytes or on artifacts, a file that is too large, or an unreadable file."""


@dataclass(frozen=True, kw_only=True)
class HistogramRecord(JsonRecord):
    """Histogram: counts of values in bins of equal width."""

    edges: Annotated[tuple[float, ...], Bounds(max_length=MAX_BINS + 1)]
    """Edges of the bins in ascending order, one edge more than bins; empty if no value is finite.
    """
    counts: Annotated[tuple[Number, ...], Bounds(max_length=MAX_BINS)]
    """Number of finite values in each bin; the last bin includes its upper edge."""
    nan: Number = 0
    """Number of NaN values."""
    positive_infinity: Number = 0
    """Number of values of plus infinity."""
    negative_infinity: Number = 0
    """Number of values of minus infinity."""


@dataclass(frozen=True, kw_only=True)
class ArtifactRecord(JsonRecord):
    """One line of `artifacts/rank-<r>.jsonl`: an image, a histogram or a file of one process."""

    time: float
    """Unix time in seconds."""
    kind: str
    """`image`, `histogram`, `table`, the kind given to `log_artifact`, such as `file` or `model`,
    or `output` for files that the supervisor collected."""
    name: str
    """Name of the artifact, with `/` between folders."""
    step: Annotated[int, Bounds(ge=0, le=LAST_STEP)] | None = None
    """Completed optimizer steps."""
    caption: Annotated[str, Cut(LONGEST_CAPTION)] = ""
    """Caption of the artifact."""
    file: str | None = None
    """Name of the content file in the same folder; absent for a histogram, and for dropped
    content."""
    histogram: HistogramRecord | None = None
    """Content of a histogram; absent for other kinds."""
    dropped: DropReason | None = None
    """Reason why the content was dropped. Only the first drop for each reason has a record."""


@dataclass(frozen=True, kw_only=True)
class ArtifactLine(JsonRecord):
    """One line of `artifacts.jsonl`; the supervisor writes it once the server has the content.

    A line without `record` reports dropped output of the ranks, with the reason.
    """

    process: int
    """Number of the process that logged the artifact; -1 for files that the supervisor
    collected."""
    end: Annotated[int, Bounds(ge=0, lt=2**62)]
    """Offset of the end of the artifact's line in the record file of the process."""
    record: ArtifactRecord | None
    """Record that the process wrote."""
    digest: str | None = None
    """SHA-256 of the content, as `sha256:<hex>`."""
    size: Annotated[int, Bounds(ge=0, lt=2**62)] = 0
    """Size of the content, in bytes."""
    dropped: DropReason | None = None
    """Reason why output was dropped; absent if none was dropped."""


def check_name(name: str) -> str:
    """Return a name unchanged if it is legal on the server and as a relative path.

    Raises:
        ValueError: the name is illegal.
    """
    if not isinstance(name, str) or not name or name != legal_artifact_name(name):
        raise ValueError(
            f"name={name if not isinstance(name, str) else name[:200]!r}: legal are 1 to "
            f"{LONGEST_NAME} characters, parts separated by '/', none of them empty, '.' or '..', "
            "without control characters and backslashes"
        )
    return name


def legal_artifact_name(text: str, *, longest: int = LONGEST_NAME) -> str:
    """Convert a text to the closest legal name; a legal name stays unchanged."""
    whole = _legal_parts(_FORBIDDEN.sub("_", text))
    return _legal_parts(whole[:longest]) or "unnamed"


def _legal_parts(name: str) -> str:
    parts = (part.strip() for part in name.split("/"))
    return "/".join(part for part in parts if part not in ("", ".", ".."))


def check_kind(kind: str) -> str:
    """Return the kind of a file unchanged if it is legal.

    Raises:
        ValueError: the kind is illegal.
    """
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ValueError(
            f"kind={kind!r}: legal are 1 to {LONGEST_KIND} letters, digits, '_', '.' and '-', "
            "beginning with a letter or a digit"
        )
    return kind


def legal_kind(text: str) -> str:
    """Convert a text to the closest legal kind of a file; a legal kind stays unchanged."""
    legal = _NO_KIND.sub("_", text).lstrip("_.-")[:LONGEST_KIND]
    return FILE if not legal or legal in OWN_KINDS else legal


def check_record(record: ArtifactRecord) -> None:
    """Reject a record that Trainyard's own writers never produce.

    Raises:
        ValueError: the name, the kind, the name of the content file or the histogram is illegal.
    """
    check_name(record.name)
    check_kind(record.kind)
    if record.file is not None and not CONTENT_NAME.fullmatch(record.file):
        raise ValueError(f"file={record.file[:80]!r} is no name of a content file")
    found = record.histogram
    if (found is not None) != (record.kind == HISTOGRAM and record.dropped is None):
        raise ValueError("a histogram has the kind 'histogram', and no other record has one")
    if found is not None:
        rising = all(low < high for low, high in pairwise(found.edges))
        if len(found.edges) != (len(found.counts) + 1 if found.counts else 0) or not rising:
            raise ValueError("edges: legal are rising numbers, one more than counts")
        numbers = (
            *found.counts,
            found.nan,
            found.positive_infinity,
            found.negative_infinity,
        )
        if min(numbers) < 0 or not all(map(_is_finite, found.edges)):
            raise ValueError("a histogram has finite edges, and counts from 0 on")


def _is_finite(number: float) -> bool:
    return number - number == 0
