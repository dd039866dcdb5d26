"""Views of the artifacts of a job."""

from __future__ import annotations

from trainyard.base.model_base import RecordModel


class HistogramView(RecordModel):
    """Histogram: counts of values in bins of equal width."""

    edges: tuple[float, ...]
    """Edges of the bins, ascending, with one edge more than bins; empty if no value is finite."""
    counts: tuple[int, ...]
    """Number of finite values in each bin; the last bin includes its upper edge."""
    nan: int
    """Number of NaN values."""
    positive_infinity: int
    """Number of values of plus infinity."""
    negative_infinity: int
    """Number of values of minus infinity."""


class ArtifactView(RecordModel):
    """An image, a histogram or a file that an attempt logged."""

    id: str
    """Id of the artifact."""
    attempt: int
    """Number of the attempt."""
    process: int | None
    """Number of the process that logged the artifact; null for a file that was collected at the end
    of the attempt."""
    kind: str
    """Kind of artifact: `image`, `histogram`, `output` for a collected file, or the kind that the
    script gave, such as `file`."""
    name: str
    """Name of the artifact, with `/` between folders. If several artifacts have the same name, a
    download returns the newest."""
    step: int | None
    """Number of completed optimizer steps, as given by the script; null if it gave none."""
    caption: str
    """Caption of the artifact."""
    time: float
    """Time at which the artifact was logged, Unix time in seconds."""
    size: int | None
    """Size of the content, in bytes; null for a histogram."""
    digest: str | None
    """SHA-256 of the content; null for a histogram."""
    media_type: str | None
    """Media type, detected from the first bytes of the content: an image type, or
    `application/octet-stream`; null for a histogram."""
    histogram: HistogramView | None
    """Content of a histogram; null for other kinds."""
