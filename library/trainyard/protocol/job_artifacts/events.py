"""Data of the events and notices about artifacts of attempts."""

from __future__ import annotations

from typing import Literal

from trainyard.protocol.event_kinds import EventData
from trainyard.run.artifacts.artifact_records import DropReason

ArtifactGroup = Literal["image", "histogram", "files"]
"""Group of artifacts with its own list on the page of a job."""


class OutputDropped(EventData):
    """Artifacts or logs of an attempt were dropped; one event for each reason."""

    what: Literal["artifacts", "logs"]
    """What was dropped."""
    reason: DropReason
    """Why."""
    first: str | None
    """Name of the first dropped artifact; null for logs."""


class ArtifactsStored(EventData):
    """Images, histograms or files of an attempt were stored."""

    count: int
    """Number of artifacts."""
    group: ArtifactGroup | None = None
    """Group of the artifacts; `files` for all others. Null in a notice of an earlier version."""
