"""Views of the artifacts of a job."""

from __future__ import annotations

from trainyard.base.model_base import RecordModel


class HistogramView(RecordModel):
    """Values, folded to bins of equal width."""

    edges: tuple[float, ...]
    """Edges of the bins, rising; one more than there are bins, or none without a finite value."""
    counts: tuple[int, ...]
    """Finite values of each bin; the last bin includes its upper edge."""
    nan: int
    """Values that are NaN."""
    positive_infinity: int
    """Values that are infinity."""
    negative_infinity: int
    """Values that are minus infinity."""


class ArtifactView(RecordModel):
    """An image, a histogram or a file that an attempt logged."""

    id: str
    """Its id."""
    attempt: int
    """Number of the attempt."""
    process: int | None
    """Number of the process that logged it; null for what was collected when the attempt ended."""
    kind: str
    """`image`, `histogram`, `output` (collected), or what the script names, such as `file`."""
    name: str
    """Its name, with `/` between folders; the newest one of a name counts."""
    step: int | None
    """Completed optimizer steps; null where the script gave none."""
    caption: str
    """A text next to it."""
    time: float
    """When it was logged, Unix time in seconds."""
    size: int | None
    """Bytes of its content; null for a histogram."""
    digest: str | None
    """SHA-256 of its content; null for a histogram."""
    media_type: str | None
    """Type of its content, recognised by its first bytes: that of an image, or
    `application/octet-stream`; null for a histogram."""
    histogram: HistogramView | None
    """The histogram."""
