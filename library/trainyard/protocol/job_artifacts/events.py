"""Data of the events and notices about artifacts of attempts."""

from __future__ import annotations

from typing import Literal

from trainyard.protocol.event_kinds import EventData
from trainyard.run.artifacts.artifact_records import DropReason

ArtifactGroup = Literal["image", "histogram", "files"]
"""Group of artifacts; each group has its own list on the page of a job."""


class OutputDropped(EventData):
    """Artifacts or logs of an attempt were dropped; for each reason, only the first drop causes an
    event."""

    what: Literal["artifacts", "logs"]
    """Kind of the dropped data."""
    reason: DropReason
    """Reason why the data was dropped."""
    first: str | None
    """Name of the first dropped artifact; null for logs."""


class ArtifactsStored(EventData):
    """Images, histograms or files of an attempt were stored."""

    count: int
    """Number of artifacts."""
    group: ArtifactGroup | None = None
    """Group of the artifacts; `files` for artifacts that are neither images nor histograms. Null in
    a notice of an earlier version."""
