"""Packs on a node: fetched, checked and kept, and a copy for each attempt."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker.conftest import Attempt, Place
from tests.worker.fake_server import FakeServer
from tests.worker.launchers.process_launcher import PROGRAM
from worker.node.folder_usage import evict

SAY = "import os\nprint(os.getcwd(), flush=True)\n"


@pytest.fixture
def place(place: Place) -> Place:
    """A node that runs code of jobs."""
    place.local = replace(place.local, allow_code=True)
    return place


def packed(script: str = SAY, name: str = "train.py") -> bytes:
    """Return a pack with one file."""
    content, made = script.encode(), io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return gzip.compress(made.getvalue(), mtime=0)


def digest_of(pack: bytes) -> str:
    return f"sha256:{hashlib.sha256(pack).hexdigest()}"


def start(place: Place, pack: bytes) -> Attempt:
    code = {"pack": digest_of(pack)}
    program = {"command": ["train.py"], "launcher": "command", "code": code}
    return place.start(launcher=PROGRAM, ranks=1, program=program)


def test_a_pack_is_fetched_once_and_each_attempt_has_a_copy_of_its_own(
    place: Place, server: FakeServer
) -> None:
    pack = packed(SAY + "open('made', 'x').close()\n")
    server.packs = [pack]
    for _ in range(2):
        attempt = start(place, pack)
        assert attempt.exit().outcome == "succeeded"
        assert attempt.log().splitlines() == [str(attempt.run.root / "code")]
        assert sorted(path.name for path in attempt.run.code.iterdir()) == ["made", "train.py"]
    assert server.fetches == 1


def test_a_pack_that_arrives_damaged_is_fetched_again(place: Place, server: FakeServer) -> None:
    pack = packed()
    server.packs = [b"damaged", pack[:-1], pack]
    assert start(place, pack).exit().outcome == "succeeded"
    assert server.fetches == 3
    kept = place.local.store.packs / f"{digest_of(pack).removeprefix('sha256:')}.tar.gz"
    assert kept.read_bytes() == pack
    kept.write_bytes(b"damaged on disk")
    server.packs = [pack]
    assert start(place, pack).exit().outcome == "succeeded"
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


def test_a_pack_that_leaves_its_folder_fails_the_launch(place: Place, server: FakeServer) -> None:
    pack = packed(name="../evil.py")
    server.packs = [pack]
    failure = start(place, pack).exit().failure
    assert failure is not None
    assert failure.reason == "launch_error"
    assert "'../evil.py' is no path inside the folder" in failure.message
    assert not failure.free_retry


def test_the_packs_of_a_node_are_bounded(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "middle", "old")):
        path = tmp_path / f"{name}.tar.gz"
        path.write_bytes(bytes(10))
        os.utime(path, (10**9 - age, 10**9 - age))
    evict(tmp_path, but=tmp_path / "old.tar.gz", suffix=".gz", most=25)
    assert {path.name for path in tmp_path.iterdir()} == {"new.tar.gz", "old.tar.gz"}


def test_what_a_killed_fetch_left_goes_after_a_time(place: Place, server: FakeServer) -> None:
    packs = place.local.store.packs
    packs.mkdir(parents=True)
    now = time.time()
    for name, age in ((".fetch-old", 3601), (".fetch-old.whole", 3601), (".fetch-new", 3500)):
        path = packs / name
        path.write_bytes(b"x")
        os.utime(path, (now - age, now - age))
    pack = packed()
    server.packs = [pack]
    assert start(place, pack).exit().outcome == "succeeded"
    kept = {path.name for path in packs.iterdir() if path.name.startswith(".fetch-")}
    assert kept == {".fetch-new"}


def test_a_pack_that_breaks_its_reader_counts_against_the_job_alone(
    place: Place, server: FakeServer
) -> None:
    """Each header belongs to the next one, which `tarfile` reads recursively."""
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 5
    pack = gzip.compress((member.tobuf() + b"name\0".ljust(512, b"\0")) * 2000, mtime=0)
    server.packs = [pack]
    failure = start(place, pack).exit().failure
    assert failure is not None
    assert (failure.reason, failure.node_at_fault) == ("launch_error", False)
    assert failure.message.startswith("code.pack: its headers cannot be read: RecursionError")
