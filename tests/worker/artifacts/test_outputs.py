"""Files that the spec names are stored when an attempt ends: no link, no foreign file, once."""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import pytest

from tests.worker.artifacts.stand_ins import FakeApi, digest_of, lines_of, names, turn, written
from tests.worker.conftest import Place
from tests.worker.launchers.process_launcher import PROGRAM
from trainyard.protocol.job_artifacts.messages import UploadReply
from worker.api import ServerAway
from worker.artifacts import outputs, uploader
from worker.artifacts.outputs import matching
from worker.artifacts.uploader import ArtifactUploader
from worker.launch import prepare_run
from worker.launchers.base import Share
from worker.node.files import open_regular


def write_files(base: Path, *names: str) -> None:
    for name in names:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(name)


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["*.csv"], ["a.csv"]),
        (["**/*.csv"], ["a.csv", "in/b.csv", "in/deep/c.csv"]),
        (["in/*"], ["in/b.csv"]),
        (["in/**"], ["in/b.csv", "in/deep/c.csv"]),
        (["**/deep/*.csv", "a.???"], ["a.csv", "in/deep/c.csv"]),
        ([".hidden/*", ".d[ao]t"], [".dot", ".hidden/x.csv"]),
        (["no/*.csv", "A.csv"], []),
    ],
)
def test_patterns_match_files_below_the_folder(
    tmp_path: Path, patterns: list[str], found: list[str]
) -> None:
    base = tmp_path / "base"
    write_files(base, "a.csv", "in/b.csv", "in/deep/c.csv", ".dot", ".hidden/x.csv")
    (tmp_path / "outside").mkdir()
    write_files(tmp_path / "outside", "secret.csv")
    (base / "link.csv").symlink_to(tmp_path / "outside" / "secret.csv")
    (base / "link").symlink_to(tmp_path / "outside")
    (base / "in" / "up").symlink_to(tmp_path)
    os.mkfifo(base / "pipe.csv")
    tails = frozenset(PurePosixPath(each).parts for each in patterns)
    seen = []
    for name, file in matching(base, (), tails, owner=os.geteuid()):
        assert file is not None
        with file:
            assert file.read().decode() == name
        seen.append(name)
    assert sorted(seen) == sorted(found)
    assert list(matching(base, (), tails, owner=os.geteuid() + 1)) == []
    assert list(matching(base, ("link",), tails, owner=os.geteuid())) == []


def test_files_of_the_spec_are_stored_at_the_end_also_of_a_failure(place: Place) -> None:
    script = (
        "import os, pathlib\n"
        "pathlib.Path('out').mkdir()\n"
        "pathlib.Path('out/a.txt').write_text('working')\n"
        "pathlib.Path('b.txt').write_text('shadowed')\n"
        "outputs = pathlib.Path(os.environ['TRAINYARD_RUN'], 'outputs')\n"
        "(outputs / 'b.txt').write_text('outputs')\n"
        "os.symlink('/etc/passwd', 'c.txt')\n"
        "raise SystemExit(3)\n"
    )
    program = {
        "command": ["python", "-c", script],
        "launcher": "command",
        "artifacts": ["**/*.txt"],
    }
    attempt = place.start(launcher=PROGRAM, ranks=1, program=program)
    assert attempt.exit().outcome == "failed"
    lines = lines_of(attempt)
    assert sorted(names(lines)) == ["b.txt", "out/a.txt"]
    assert {(line.process, line.record.kind) for line in lines if line.record} == {(-1, "output")}
    assert set(attempt.seen.contents) == {digest_of(b"outputs"), digest_of(b"working")}


def share_with_outputs(place: Place) -> Share:
    program = {"command": ["x"], "artifacts": ["*"]}
    attempt = place.attempt(place.grant(ranks=1, program=program))
    return Share.read(prepare_run(place.local, attempt.id, attempt.seen.claim))


def test_an_outage_while_files_are_collected_stores_each_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = share_with_outputs(place)
    write_files(Path(share.run.outputs), "a", "b", "c")
    monkeypatch.setattr(uploader, "MAX_OUTPUTS", 2)
    found = ArtifactUploader(share)
    found.finish(wait_seconds=0)
    with pytest.raises(ServerAway):
        turn(found, FakeApi(UploadReply(stored=1), ServerAway("away")))
    later = ArtifactUploader(share)
    later.finish(wait_seconds=0)
    turn(later, FakeApi(UploadReply(stored=1)))
    turn(later, FakeApi())
    lines = written(share.run)
    assert names(lines) == ["a", "b", "c"]
    assert [line.dropped for line in lines] == [None, None, "too_many"]


@pytest.mark.parametrize("fails", ["open", "read"])
def test_a_file_that_cannot_be_read_is_dropped_and_the_others_follow(
    place: Place, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    share = share_with_outputs(place)
    write_files(Path(share.run.outputs), "a", "b")
    send_file = uploader.send_file

    def open_file(path: Path, **given: Any) -> BinaryIO:
        if path.name == "a":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return open_regular(path, **given)

    def send(api: Any, attempt_id: str, file: BinaryIO, **given: Any) -> Any:
        if file.read() == b"a":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return send_file(api, attempt_id, file, **given)

    if fails == "open":
        monkeypatch.setattr(outputs, "open_regular", open_file)
    else:
        monkeypatch.setattr(uploader, "send_file", send)
    found, api = ArtifactUploader(share), FakeApi()
    found.finish(wait_seconds=0)
    turn(found, api)
    lines = written(share.run)
    assert names(lines) == ["a", "b"]
    assert [line.dropped for line in lines] == ["unreadable", None]
    assert api.content == b"b"
