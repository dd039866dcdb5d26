"""Artifacts of a program reach the server: once, despite outages, from any supervisor."""

from __future__ import annotations

import io
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tests.e2e.control_plane import disk_of
from tests.worker.artifacts.stand_ins import (
    FakeApi,
    digest_of,
    lines_of,
    names,
    turn,
    written,
)
from tests.worker.conftest import Attempt, Place, make_place, wait_for
from tests.worker.fake_server import FakeServer, content
from tests.worker.launchers.process_launcher import PROGRAM
from trainyard.protocol.job_artifacts.messages import BLOCK_BYTES, UploadReply
from trainyard.run.artifacts.artifact_records import DropReason
from trainyard.run.session import Run
from trainyard.run.session.process_place import ProcessPlace
from worker.api import ServerAway
from worker.artifacts import artifact_lines
from worker.artifacts.uploader import ArtifactUploader, send_file
from worker.launch import prepare_run
from worker.launchers.base import Share
from worker.supervisor.spool import Spool

ALONE = ProcessPlace()
MIB = 2**20
SCRIPT = """
import os, pathlib, sys, time
import trainyard

run = trainyard.init()
file = pathlib.Path("large.bin")
file.write_bytes(bytes(range(256)) * 8192)
run.log_artifact(file, kind="model", step=1)
run.log_image("samples/a", memoryview(bytes(48)).cast("B", (4, 4, 3)), step=1)
run.log_histogram("weights", [1.0, 2.0, float("nan")], step=1, bins=2)
run.flush()
print("logged", flush=True)
while len(sys.argv) > 1 and not run.should_stop():
    time.sleep(0.05)
    run.log_histogram("more", [1.0])
"""


def start(place: Place, *words: str, ranks: int = 1) -> Attempt:
    program = {"command": ["python", "-c", SCRIPT, *words], "launcher": "command"}
    return place.start(launcher=PROGRAM, ranks=ranks, program=program)


def test_all_that_a_program_logs_is_there_when_its_end_is_reported(place: Place) -> None:
    attempt = start(place)
    assert attempt.exit().outcome == "succeeded"
    lines = lines_of(attempt)
    assert names(lines) == ["large.bin", "samples/a", "weights"]
    assert {line.process for line in lines} == {0}
    large = bytes(range(256)) * 8192
    assert attempt.seen.contents[digest_of(large)] == large
    for digest, stored in attempt.seen.contents.items():
        assert digest_of(stored) == digest
    (weights,) = (line.record for line in lines if line.digest is None)
    assert weights is not None
    assert weights.histogram is not None
    assert (weights.histogram.counts, weights.histogram.nan) == ((1, 1), 1)
    left = [path.name for path in Path(attempt.run.artifacts).iterdir()]
    assert left == ["rank-0.jsonl"]  # uploaded contents need no space


def test_an_outage_loses_nothing(place: Place, server: FakeServer) -> None:
    attempt = start(place, "runs")
    wait_for(lambda: "logged" in attempt.log() or None, "the program")
    server.close()
    time.sleep(2)
    server.open()
    wait_for(lambda: "more" in names(lines_of(attempt)) or None, "what it logs afterwards")
    before = names(lines_of(attempt))
    attempt.seen.desired = "stop"  # type: ignore[assignment]  # as over the wire
    assert attempt.exit().outcome == "stopped"
    assert names(lines_of(attempt))[: len(before)] == before
    assert {"large.bin", "samples/a", "weights"} <= set(before)
    assert before.count("large.bin") == 1


def test_what_a_killed_supervisor_had_not_sent_is_sent_after_it(
    place: Place, server: FakeServer
) -> None:
    server.close()
    attempt = start(place, "runs")
    log = Path(attempt.run.log(0))
    wait_for(lambda: (log.exists() and "logged" in log.read_text()) or None, "the program")
    assert attempt.supervisor is not None
    attempt.supervisor.kill()
    attempt.supervisor.wait()
    server.open()
    place.supervise(attempt.id, attempt.run, PROGRAM).wait(60)
    found = names(lines_of(attempt))
    assert [found.count(name) for name in ("large.bin", "samples/a", "weights")] == [1, 1, 1]


def test_a_server_without_artifacts_holds_up_no_end(
    place: Place, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> UploadReply:
        server._need(False, 404)
        raise AssertionError

    monkeypatch.setattr(server, "_upload", refuse)
    assert start(place).exit().outcome == "succeeded"


# ---- in this process -----------------------------------------------------------------------------


@pytest.fixture
def share(place: Place) -> Share:
    attempt = place.attempt(place.grant(ranks=1, program={"command": ["x"]}))
    return Share.read(prepare_run(place.local, attempt.id, attempt.seen.claim))


def send(
    api: FakeApi, file: BinaryIO, *, stopped: bool = False
) -> tuple[str | None, int, DropReason | None]:
    return send_file(api, "a", file, stopped=lambda: stopped)  # type: ignore[arg-type]  # a fake


def test_an_upload_continues_at_the_byte_that_the_server_names(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(os.urandom(3 * BLOCK_BYTES + 1))
    api = FakeApi()
    api.content = path.read_bytes()[: 2 * BLOCK_BYTES]
    with path.open("rb") as file:
        digest, size, dropped = send(api, file)
    assert (digest, size, dropped) == (digest_of(path.read_bytes()), 3 * BLOCK_BYTES + 1, None)
    assert api.content == path.read_bytes()
    stuck = FakeApi(*[UploadReply(stored=0)] * 10)
    with path.open("rb") as file, pytest.raises(ServerAway, match="stays at byte 0"):
        send(stuck, file)


class Changing(io.BytesIO):
    """A file that grows, or shrinks, with each read of it."""

    def __init__(self, content: bytes, *, grows: bool) -> None:
        super().__init__(content)
        self._grows = grows

    def read(self, size: int | None = -1, /) -> bytes:
        if self._grows:
            at = self.tell()
            self.seek(0, os.SEEK_END)
            self.write(b"more")
            self.seek(at)
        else:
            self.truncate(2)
        return super().read(size)


def test_a_file_that_grows_is_what_it_was_and_one_that_shrinks_is_dropped() -> None:
    api = FakeApi()
    assert send(api, Changing(b"first", grows=True)) == (digest_of(b"first"), 5, None)
    assert api.content == b"first"
    api = FakeApi()
    assert send(api, Changing(b"first", grows=False)) == (None, 0, "unreadable")
    assert api.content == b""


def test_an_upload_ends_with_the_share(share: Share) -> None:
    api = FakeApi()
    with pytest.raises(ServerAway, match="the share is over"):
        send(api, io.BytesIO(b"content"), stopped=True)
    assert api.content == b""
    found = ArtifactUploader(share)
    share.run.secret.unlink()
    with pytest.raises(FileNotFoundError):
        found.upload_until_over()
    assert found.done  # the exit does not wait for an ended thread


def test_content_of_a_record_that_is_dropped_already_is_not_sent(share: Share) -> None:
    content_file = Path(share.run.artifacts) / "rank-0-x"
    content_file.write_bytes(b"content")
    record = {"time": 1.0, "kind": "file", "name": "x", "file": content_file.name}
    records = Path(share.run.artifacts) / "rank-0.jsonl"
    records.write_text(json.dumps(record | {"dropped": "queue_full"}) + "\n")
    api = FakeApi()
    turn(ArtifactUploader(share), api)
    (line,) = written(share.run)
    assert (api.content, line.digest, line.dropped) == (b"", None, "queue_full")
    assert not content_file.exists()


def test_an_outage_between_content_and_line_makes_one_line(share: Share) -> None:
    run = Run(share.run.root, ALONE)
    run.log_image("a", memoryview(bytes(3)).cast("B", (1, 1, 3)))
    run.close()
    api = FakeApi(ServerAway("away"))
    with pytest.raises(ServerAway):
        turn(ArtifactUploader(share), api)
    later = ArtifactUploader(share)  # of another process
    assert turn(later, api)
    assert not turn(later, api)
    assert not turn(ArtifactUploader(share), api)
    assert names(written(share.run)) == ["a"]


def test_the_first_refusal_for_each_reason_is_noted_and_the_next_one_goes_on(share: Share) -> None:
    run = Run(share.run.root, ALONE)
    for step in range(4):
        run.log_artifact(__file__, step=step)
    run.close()
    refusal = UploadReply(stored=0, refused="quota")
    turn(ArtifactUploader(share), FakeApi(refusal, refusal, refusal))
    first, last = written(share.run)
    assert (first.dropped, first.digest) == ("quota", None)
    assert last.record is not None
    assert (last.record.step, last.dropped) == (3, None)
    assert len(list(Path(share.run.artifacts).iterdir())) == 1


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "absent", "hole"])
def test_what_a_hostile_program_names_is_not_read(share: Share, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("token")
    target = Path(share.run.artifacts) / "rank-0-x"
    if kind == "link":
        target.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(target)
    elif kind == "folder":
        target.mkdir()
    elif kind == "hole":
        with target.open("wb") as file:
            file.truncate(2**40)
    record = {"time": 1.0, "kind": "file", "name": "x", "file": "rank-0-x"}
    records = Path(share.run.artifacts) / "rank-0.jsonl"
    bad = [record | {"file": "../spec.json"}, record | {"name": "../x"}, {"x": 1}]
    records.write_text("".join(json.dumps(each) + "\n" for each in [*bad, record]))
    api = FakeApi()
    turn(ArtifactUploader(share), api)
    assert api.content == b""
    (line,) = written(share.run)
    assert line.dropped == ("too_large" if kind == "hole" else "unreadable")


def test_a_record_without_end_and_too_many_lines_are_bounded(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Path(share.run.artifacts) / "rank-0.jsonl"
    record = b'{"time":1.0,"kind":"histogram","name":"x","histogram":{"edges":[],"counts":[]}}\n'
    monkeypatch.setattr(artifact_lines, "MAX_LINES", 3)
    records.write_bytes(record * 10)
    found = ArtifactUploader(share)
    turn(found, FakeApi())
    assert [line.dropped for line in written(share.run)] == [None, None, None, "too_many"]
    records.write_bytes(record * 10 + b"x" * 300_000)
    assert not turn(found, FakeApi())
    assert not turn(found, FakeApi())


def test_a_full_disk_takes_artifacts_first_then_logs_and_never_metrics(
    tmp_path: Path, server: FakeServer
) -> None:
    with disk_of("32m", tmp_path / "disk"):
        place = make_place(tmp_path / "disk", server)
        found = uploader_on_disk(place)
        run = Run(found.share.run.root, ALONE)
        log = Path(found.share.run.log(0))
        log.write_bytes(b"x" * 8 * MIB)
        run.log_artifact(log, name="copy")
        run.log({"train/loss": 1.0}, step=1)
        run.flush()
        assert len(found.content_files) == 1
        filler = tmp_path / "disk" / "filler"
        fill(filler)
        # One of the others finds no space; metrics and records still do.
        run.log_image("late", memoryview(bytes(3)).cast("B", (1, 1, 3)))
        run.log({"train/loss": 2.0}, step=2)
        run.flush()
        found.spool.make_room()
        chunks = {each.file: each for each in found.spool.chunks()}
        assert content(chunks["metrics"]).count(b"\n") == 2
        assert found.content_files == []
        assert log.stat().st_blocks * 512 > 7 * MIB  # the space of artifacts was enough
        fill(filler)
        found.spool.make_room()
        assert log.stat().st_blocks * 512 < MIB
        assert log.stat().st_size == 8 * MIB
        turn(found.uploads, FakeApi())
        found.spool.make_room()
        lines = written(found.share.run)
        assert [(line.record is None, line.dropped) for line in lines] == [
            (True, "disk_full"),  # logs
            (False, "disk_full"),
        ]
        run.log({"train/loss": 3.0}, step=3)
        run.close()
        assert Path(found.share.run.metrics).read_bytes().count(b"\n") == 3
        place.clean()


def test_logs_that_wait_for_the_server_take_no_more_than_they_may(share: Share) -> None:
    kept, held = 16 * 1024, 128 * 1024
    uploads = ArtifactUploader(share)
    spool = Spool(share.run, ranks=[0], artifacts=uploads, log_kept_bytes=kept, log_held_bytes=held)
    log = Path(share.run.log(0))
    for size in (held, held + kept, held + 3 * kept):
        with log.open("ab") as file:
            file.write(b"x" * (size - file.tell()))
        spool.make_room()  # for reports that never arrive
        assert [line.dropped for line in written(share.run)] == ["spool_full"] * (size > held)
    assert log.stat().st_blocks * 512 <= held


@dataclass
class OnDisk:
    """The spool of a share, and its uploads."""

    share: Share
    uploads: ArtifactUploader
    spool: Spool

    @property
    def content_files(self) -> list[str]:
        return [path.name for path in Path(self.share.run.artifacts).glob("rank-0-*")]


def uploader_on_disk(place: Place) -> OnDisk:
    attempt = place.attempt(place.grant(ranks=1, program={"command": ["x"]}))
    share = Share.read(prepare_run(place.local, attempt.id, attempt.seen.claim))
    uploads = ArtifactUploader(share)
    return OnDisk(share, uploads, Spool(share.run, ranks=[0], artifacts=uploads))


def fill(path: Path) -> None:
    """Let a file grow until half a MiB of its disk is free."""
    disk = os.statvfs(path.parent)
    with path.open("ab") as file:
        file.write(bytes(disk.f_bavail * disk.f_frsize - MIB // 2))
