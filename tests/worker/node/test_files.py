"""Files of ranks in a run directory are read only if regular and owned by the ranks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.worker.fake_server import content
from trainyard.run.atomic import replace_file
from trainyard.run.record_base import to_json
from trainyard.run.records import Heartbeat, Outcome, RequestAnswer
from worker.launchers.torchrun import RankWatch
from worker.node.files import LARGEST_RECORD, open_regular, read_record, tail
from worker.node.node_store import WorkerRun
from worker.node.process_tree import ProcessTree
from worker.supervisor.exit_classification import last_words
from worker.supervisor.hang import HangWatch
from worker.supervisor.spool import Spool

TOKEN = "ty_node_secret"
OUTCOME = to_json(Outcome(outcome="succeeded", step=3))


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "node.token"
    path.write_text(TOKEN)
    return path


def plant(path: Path, kind: str, target: Path) -> None:
    """Replace a file by something other than a regular file of the rank."""
    if kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.hardlink_to(target)


KINDS = ["link", "pipe", "folder", *(["hard link"] if os.geteuid() == 0 else [])]


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_of_the_node_is_served_as_one_of_a_rank(
    run: WorkerRun, token: Path, kind: str
) -> None:
    started = time.monotonic()
    token.write_text(OUTCOME + "\n")  # it could even be read as a record
    for path in (run.log(0), run.metrics, run.events, run.heartbeat, run.outcome, run.error):
        plant(Path(path), kind, token)
    plant(run.ranks / "0.start", kind, token)
    if kind == "hard link":
        os.chown(token, 61_999, -1)  # the node's user is not the ranks'
    spool = Spool(run, ranks=[0])
    assert spool.chunks() == ()
    assert spool.drained, "nothing waits for it"
    assert last_words(run) == (None, None)
    watch = HangWatch(Path(run.heartbeat), hang_seconds=60)
    assert (watch.silence(), watch.heartbeat) == (None, None)
    assert tail(Path(run.log(0))) == ""
    assert not RankWatch(run, [0]).poll().started
    assert time.monotonic() - started < 5, "a pipe is not waited for"


def test_a_regular_file_is_served(run: WorkerRun) -> None:
    Path(run.log(0)).write_text("line\n")
    (chunk,) = Spool(run, ranks=[0]).chunks()
    assert content(chunk) == b"line\n"
    assert tail(Path(run.log(0))) == "line"
    bars = b"".join(b"\r%4d/9999 [####]" % step for step in range(1000))
    Path(run.log(0)).write_bytes(b"first\n" + bars + b" ValueError: no\n")
    assert tail(Path(run.log(0))) == "first\n 999/9999 [####] ValueError: no"


def test_a_record_has_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_text(to_json(RequestAnswer(ok=True, message="", step=1)))
    assert read_record(path, RequestAnswer) is not None
    with path.open("r+b") as file:
        file.truncate(LARGEST_RECORD + 1)
    assert read_record(path, RequestAnswer) is None


def test_the_supervisor_writes_through_no_link(run: WorkerRun, token: Path) -> None:
    Path(run.launcher_log).symlink_to(token)
    with pytest.raises(OSError, match="symbolic links"):
        ProcessTree().spawn(["true"], environment={}, output=run.launcher_log)
    Path(run.exit).symlink_to(token)
    replace_file(Path(run.exit), "{}")
    assert not Path(run.exit).is_symlink()
    assert token.read_text() == TOKEN


def test_another_user_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("a")
    with open_regular(path) as file:
        assert file.read() == b"a"
    with pytest.raises(PermissionError, match="no regular file of its writer"):
        open_regular(path, owner=os.geteuid() + 1)
    assert read_record(path, Heartbeat) is None
