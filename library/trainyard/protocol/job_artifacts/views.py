"""Views of the artifacts of a job."""

from __future__ import annotations

from trainyard.base.model_base import RecordModel


class HistogramView(RecordModel):
    """Counts of values in bins of equal width."""

    edges: tuple[float, ...]
    """Ascending edges of the bins, one more than bins; empty without a finite value."""
    counts: tuple[int, ...]
    """Number of finite values in each bin; the last bin includes its upper edge."""
    nan: int
    """Number of NaN values."""
    positive_infinity: int
    """Number of infinite values."""
    negative_infinity: int
    """Number of values of minus infinity."""


class ArtifactView(RecordModel):
    """An image, a histogram or a file that an attempt logged."""

    id: str
    """Its id."""
    attempt: int
    """Number of the attempt."""
    process: int | None
    """Number of the process that logged it; null for files collected at the end of the attempt."""
    kind: str
    """`image`, `histogram`, `output` (collected), or the script's own kind, such as `file`."""
    name: str
    """Its name, with `/` between folders; the newest artifact of a name counts."""
    step: int | None
    """Completed optimizer steps; null if the script gave none."""
    caption: str
    """Its caption."""
    time: float
    """When it was logged, Unix time in seconds."""
    size: int | None
    """Bytes of its content; null for a histogram."""
    digest: str | None
    """SHA-256 of its content; null for a histogram."""
    media_type: str | None
    """Media type, detected from its first bytes: an image type, or `application/octet-stream`; null
    for a histogram."""
    histogram: HistogramView | None
    """The histogram."""
