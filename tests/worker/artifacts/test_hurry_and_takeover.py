"""Uploads delay no cancel and no notice, outlast a missing route, and continue after a takeover."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.worker.artifacts.stand_ins import FakeApi, lines_of, names, turn, written
from tests.worker.conftest import Attempt, Place, wait_for
from tests.worker.fake_server import FakeServer
from tests.worker.launchers.process_launcher import PROGRAM
from trainyard.protocol.job_artifacts.messages import UploadReply
from trainyard.protocol.states import DesiredState
from trainyard.run.failures import FailureReason
from trainyard.run.session import Run
from trainyard.run.session.process_place import ProcessPlace
from worker.artifacts.uploader import ArtifactUploader
from worker.launch import prepare_run
from worker.launchers.base import Share

SCRIPT = """
import pathlib, time
import trainyard

run = trainyard.init()
pathlib.Path("file").write_bytes(b"content")
run.log_artifact("file")
run.flush()
print("logged", flush=True)
while not run.should_stop():
    time.sleep(0.05)
"""


class Route:
    """The answers to uploads: refused with a status until it opens."""

    def __init__(self, server: FakeServer, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
        self.refused = 0
        self.is_open = False
        upload = server._upload

        def answer(*words: Any) -> UploadReply:
            if not self.is_open:
                self.refused += 1
                server._need(False, status)
            return upload(*words)

        monkeypatch.setattr(server, "_upload", answer)


def started(place: Place, grace_seconds: float = 30.0) -> Attempt:
    program = {
        "command": ["python", "-c", SCRIPT],
        "launcher": "command",
        "stop_grace_seconds": grace_seconds,
    }
    attempt = place.start(launcher=PROGRAM, ranks=1, program=program)
    wait_for(lambda: "logged" in attempt.log() or None, "the program")
    return attempt


@pytest.mark.parametrize("status", [404, 405])
def test_a_route_may_be_missing_for_a_while(
    place: Place, server: FakeServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    route = Route(server, monkeypatch, status)
    attempt = started(place)
    wait_for(lambda: route.refused > 2 or None, "refusals")
    route.is_open = True
    wait_for(lambda: "file" in names(lines_of(attempt)) or None, "the artifact")
    attempt.seen.desired = DesiredState.STOP
    assert attempt.exit().outcome == "stopped"
    assert names(lines_of(attempt)) == ["file"]


@pytest.mark.parametrize("order", ["cancel", "notice"])
def test_an_end_in_a_hurry_waits_for_uploads_no_longer_than_the_grace(
    place: Place, server: FakeServer, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    route = Route(server, monkeypatch, 503)
    attempt = started(place, grace_seconds=2.0)
    wait_for(lambda: route.refused > 0 or None, "a refusal")
    if order == "cancel":
        attempt.seen.desired = DesiredState.CANCEL
    else:
        os.kill(attempt.pid, signal.SIGTERM)
    record = attempt.exit()
    reason = None if record.failure is None else record.failure.reason
    expected = {"cancel": ("cancelled", None), "notice": ("failed", FailureReason.PREEMPTED)}
    assert (record.outcome, reason) == expected[order]
    assert lines_of(attempt) == []


def test_a_cancel_ends_the_wait_of_a_stop_for_uploads(
    place: Place, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Route(server, monkeypatch, 503)
    attempt = started(place, grace_seconds=0.0)
    attempt.seen.desired = DesiredState.STOP
    exit_path = Path(attempt.run.exit)
    wait_for(lambda: exit_path.exists() or None, "the end of the ranks")
    assert attempt.seen.exit is None
    attempt.seen.desired = DesiredState.CANCEL
    assert attempt.exit().outcome == "stopped"


# ---- in this process -----------------------------------------------------------------------------


@pytest.fixture
def share(place: Place) -> Share:
    attempt = place.attempt(place.grant(ranks=1, program={"command": ["x"]}))
    return Share.read(prepare_run(place.local, attempt.id, attempt.seen.claim))


def log(share: Share, *steps: int) -> None:
    run = Run(share.run.root, ProcessPlace())
    for step in steps:
        run.log_artifact(__file__, step=step)
    run.close()


def test_a_takeover_reports_no_content_that_was_dropped_before_as_unreadable(share: Share) -> None:
    log(share, 1, 2, 3)
    refusal = UploadReply(stored=0, refused="quota")
    turn(ArtifactUploader(share), FakeApi(refusal, refusal, refusal))
    log(share, 4)
    later = ArtifactUploader(share)
    turn(later, FakeApi(refusal))
    assert [line.dropped for line in written(share.run)] == ["quota"]
    log(share, 5)
    turn(ArtifactUploader(share), FakeApi())
    first, last = written(share.run)
    assert last.record is not None
    assert (first.dropped, last.record.step, last.dropped) == ("quota", 5, None)


def test_a_takeover_reports_content_that_made_room_with_that_reason(share: Share) -> None:
    log(share, 1)
    former = ArtifactUploader(share)
    assert former.drop_waiting()
    former.note_lost_output("disk_full")
    later = ArtifactUploader(share)
    later.note_lost_output("disk_full")
    turn(later, FakeApi())
    lost, dropped = written(share.run)
    assert (lost.record, lost.dropped) == (None, "disk_full")
    assert dropped.dropped == "disk_full"


def test_a_state_that_cannot_be_read_is_none(share: Share, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"offsets": {"0": 99999}, "made_room": true}')
    log(share, 1)
    state = Path(share.run.artifact_state)
    for put in (lambda: state.symlink_to(secret), lambda: state.write_text('{"offsets": []}')):
        state.unlink(missing_ok=True)
        put()
        lines = ArtifactUploader(share).lines
        assert (lines.made_room, lines.offsets) == (False, {})
