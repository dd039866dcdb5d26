"""A launch on a node without free space: put back, and nothing is written."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tests.worker.conftest import NODE, Place
from tests.worker.fake_server import NODE_TOKEN
from trainyard.protocol.node_samples import DATA_DIR_BYTES, DATA_DIR_FULL
from trainyard.protocol.worker_messages import LaunchMessage
from worker.adopt import prove_gone
from worker.api import WorkerApi
from worker.launch import launch_attempt

BLOCK = 4096


def test_a_full_data_folder_puts_the_launch_back_before_anything_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = SimpleNamespace(
        f_frsize=BLOCK, f_blocks=DATA_DIR_BYTES // BLOCK, f_bavail=DATA_DIR_BYTES // BLOCK - 1
    )
    monkeypatch.setattr(os, "statvfs", lambda _folder: room)
    attempt = place.attempt(place.grant())
    message = LaunchMessage(attempt_id=attempt.id, node=NODE)
    with WorkerApi(place.server.url, NODE_TOKEN) as api:
        assert not launch_attempt(place.local, message, api)
    (report,) = attempt.seen.reports
    assert report.exit is not None
    failure = report.exit.failure
    assert failure is not None
    assert failure.message == f"{DATA_DIR_FULL}: {place.node.data_dir} on {NODE}"
    assert (failure.reason, failure.node) == ("launch_error", NODE)
    assert (failure.free_retry, failure.node_at_fault) == (True, False)
    assert place.node.live() == []
    assert not attempt.run.root.exists()
    assert prove_gone(place.node, [attempt.id], name=NODE) == (attempt.id,), "no process holds it"
