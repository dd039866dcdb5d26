"""What workers and the server exchange changes only with the number of the protocol."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from trainyard.protocol import worker_messages
from trainyard.protocol.worker_messages import PROTOCOL

FROZEN = Path(__file__).with_name("worker_protocol.json")
MESSAGES = (
    worker_messages.Registration,
    worker_messages.RegistrationReply,
    worker_messages.NodeHeartbeat,
    worker_messages.NodeHeartbeatReply,
    worker_messages.EndedJobsRequest,
    worker_messages.EndedJobsReply,
    worker_messages.Claim,
    worker_messages.ClaimReply,
    worker_messages.Report,
    worker_messages.ReportReply,
    worker_messages.OperationClaimReply,
    worker_messages.OperationReport,
    worker_messages.OperationReportReply,
)


def test_a_changed_message_has_a_new_protocol() -> None:
    """A worker reads no message with a field that it does not know, so it must be refused."""
    messages = {kind.__name__: _digest(kind) for kind in MESSAGES}
    found, frozen = {"protocol": PROTOCOL, "messages": messages}, json.loads(FROZEN.read_text())
    changed = [n for n, digest in messages.items() if frozen["messages"].get(n) != digest]
    assert found == frozen, (
        f"{', '.join(changed) or 'the number'} changed: raise PROTOCOL, once for each release, and "
        f"write this to {FROZEN.name}:\n{json.dumps(found, indent=2)}"
    )


def _digest(kind: Any) -> str:
    """Return a digest of the fields of a message, without their help texts."""
    schema = _without_texts(kind.model_json_schema())
    return sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]


def _without_texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_texts(each) for each in value]
    if not isinstance(value, dict):
        return value
    texts = {"description", "title", "examples"}
    return {
        name: _without_texts(each)
        for name, each in value.items()
        if name not in texts or isinstance(each, dict)
    }
