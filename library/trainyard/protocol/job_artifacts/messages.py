"""Messages between supervisors and the server to upload artifacts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainyard.base.model_base import RecordModel
from trainyard.run.artifacts.artifact_records import DropReason

BLOCK_BYTES = 1024 * 1024
"""Number of bytes in one upload; only the last upload of a file may have fewer."""
ARTIFACT_DIGEST = r"^sha256:[0-9a-f]{64}$"


class UploadReply(RecordModel):
    """Reply to the upload of a block of an artifact's content."""

    stored: Annotated[int, Field(ge=0)]
    """Number of stored bytes. The sender continues at this offset until all bytes are stored."""
    refused: DropReason | None = None
    """Reason for which the server refuses the content."""
