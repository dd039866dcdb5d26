"""Messages of uploads of artifacts, between supervisors and the server."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.base.model_base import RecordModel
from trainyard.run.artifacts.artifact_records import DropReason

BLOCK_BYTES = 1024 * 1024
"""Most bytes of one upload; all but the last one of a file have as many."""
ARTIFACT_DIGEST = r"^sha256:[0-9a-f]{64}$"


class UploadReply(RecordModel):
    """The answer to a block of an artifact's content."""

    stored: Annotated[int, Field(ge=0)]
    """Bytes that are stored: the sender continues there, and has finished at the size."""
    refused: DropReason | None = None
    """Why the content is not taken."""
