"""Path parameters that several endpoints share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from trainyard.base.ids import ID_PATTERN
from trainyard.base.names import NAME
from trainyard.protocol.node_sources.messages import SOURCE_NAME

CHECKPOINT_ID = r"^[0-7][0-9a-hjkmnp-tv-z]{25}\.a[0-9]{1,9}\.step-[0-9]{1,10}$"

JobId = Annotated[
    str,
    Path(pattern=ID_PATTERN, description="Id of the job.", examples=["01jd3m6y0000000000000000a7"]),
]
AttemptId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the attempt.")]
CheckpointId = Annotated[
    str, Path(pattern=CHECKPOINT_ID, description="Id of the checkpoint: job, attempt and step.")
]
OperationId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the operation.")]
NodeName = Annotated[str, Path(pattern=NAME, max_length=100, description="Name of the node.")]
ProjectName = Annotated[str, Path(pattern=NAME, max_length=80, description="Name of the project.")]
TokenId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the token.")]
SourceName = Annotated[
    str, Path(pattern=SOURCE_NAME, description="Name of the source.", examples=["slurm-a100"])
]
RequestId = Annotated[str, Path(pattern=ID_PATTERN, description="Id of the request for nodes.")]
