"""Replies that are no replies to a claim, such as those of a newer server."""

from __future__ import annotations

import json
import traceback

import httpx
import pytest

from trainyard.protocol.worker_messages import PROTOCOL, Claim, WorkerIdentity
from worker.api import ServerAway, WorkerApi

VALUE = "correct horse battery"
WORKER = WorkerIdentity(folder="1" * 32, boot_id="b007-0001")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (json.dumps({"secrets": {"TOKEN": VALUE}}), "spec: Field required"),
        (json.dumps({"secrets": {"TOKEN": [VALUE]}, "spec": VALUE}), "spec: "),
        (json.dumps(VALUE), "Input should be an object"),
    ],
)
def test_an_unreadable_reply_shows_no_secret(
    reply: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker logs the error with its traceback, and tries again."""
    with WorkerApi("http://127.0.0.1:1", "token") as api:
        monkeypatch.setattr(
            httpx.Client, "request", lambda *_, **__: httpx.Response(200, text=reply)
        )
        claim = Claim(protocol=PROTOCOL, node="node-1", worker=WORKER, secret="s" * 43)
        with pytest.raises(ServerAway, match="no ClaimReply: " + expected) as caught:
            api.claim("01J", claim)
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert VALUE not in shown
    assert "correct horse" not in shown
