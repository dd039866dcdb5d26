"""Which bytes a report takes from each file, and which disk space is freed, to the byte."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from tests.worker.fake_server import content
from worker.node.node_store import WorkerRun
from worker.supervisor.spool import (
    CHUNK_BYTES,
    REPORT_BYTES,
    REPORT_CHUNKS,
    Spool,
    SpoolFile,
    _punch_hole,
)

BLOCK = 4096


def test_logs_that_fill_a_report_take_turns(run: WorkerRun) -> None:
    """A report holds two whole chunks: each of three logs is omitted once in three reports."""
    for rank in range(3):
        Path(run.log(rank)).write_bytes(b"x" * (CHUNK_BYTES + 1))
    spool = Spool(run, ranks=range(3))
    taken = [[chunk.file for chunk in spool.chunks()] for _ in range(4)]
    assert taken == [
        ["log:0", "log:1"],
        ["log:1", "log:2"],
        ["log:2", "log:0"],
        ["log:0", "log:1"],
    ]


@pytest.mark.parametrize("short", [1, 3])
@pytest.mark.parametrize("acknowledged", [0, 1000])
def test_the_last_bytes_of_a_report_go_to_the_next_log(
    run: WorkerRun, short: int, acknowledged: int
) -> None:
    for rank, size in enumerate((CHUNK_BYTES, CHUNK_BYTES - short, 7, 5)):
        Path(run.log(rank)).write_bytes(b"x" * (acknowledged + size))
    spool = Spool(run, ranks=range(4))
    spool.acknowledge({f"log:{rank}": acknowledged for rank in range(4)})
    sizes = {chunk.file: chunk.end - chunk.start for chunk in spool.chunks()}
    assert sizes == {"log:0": CHUNK_BYTES, "log:1": CHUNK_BYTES - short, "log:2": short}


def test_a_line_that_fills_a_report_comes_alone(run: WorkerRun) -> None:
    Path(run.metrics).write_bytes(b"x" * (REPORT_BYTES - 1) + b"\n")
    Path(run.events).write_bytes(b"{}\n")
    spool = Spool(run, ranks=[])
    assert [(chunk.file, chunk.end) for chunk in spool.chunks()] == [("metrics", REPORT_BYTES)]


def test_only_files_of_their_writer_are_reported_and_freed(
    run_of_another_user: WorkerRun, caplog: pytest.LogCaptureFixture
) -> None:
    """The ranks run as another user, who writes the records; the supervisor makes the logs."""
    run = run_of_another_user
    Path(run.logs).mkdir()
    for path in (run.metrics, run.events, run.log(0)):
        Path(path).write_bytes(b"{}\n" * 4 * BLOCK)
    spool = Spool(run, ranks=[0], log_kept_bytes=BLOCK)
    for _ in range(3):
        assert [chunk.file for chunk in spool.chunks()] == ["log:0"]
        named = [record.getMessage().split(": [Errno 1] ") for record in caplog.records]
        assert named == [
            [f"{path} is not reported", f"no regular file of its writer: '{path}'"]
            for path in (run.metrics, run.events)
        ], "each is named once"
    foreign = SpoolFile("log:0", Path(run.log(0)), owner=os.geteuid() + 1, whole_lines=False)
    foreign.acknowledged = 12 * BLOCK
    foreign.free(kept=BLOCK, held=100 * BLOCK)
    assert zeros(Path(run.log(0))) == 0


def test_a_report_has_a_largest_number_of_chunks(run: WorkerRun) -> None:
    ranks = range(REPORT_CHUNKS + 9)
    for rank in ranks:
        Path(run.log(rank)).write_bytes(b"x")
    spool = Spool(run, ranks=ranks)
    assert [c.file for c in spool.chunks()] == [f"log:{rank}" for rank in ranks[:REPORT_CHUNKS]]
    assert len(spool.chunks()) == REPORT_CHUNKS


def test_records_are_halved_and_doubled(run: WorkerRun) -> None:
    Path(run.metrics).write_bytes(b"{} \n" * 8)
    spool = Spool(run, ranks=[])
    sizes = [chunk.end - chunk.start for chunk in spool.chunks()]
    while spool.narrow():
        sizes += [chunk.end - chunk.start for chunk in spool.chunks()]
    assert sizes == [32, 16, 8, 4, 4, 4]  # a line goes whole, whatever the limit
    for size in (4, 4, 8, 16, 32, 32):
        spool.widen()
        assert [chunk.end - chunk.start for chunk in spool.chunks()] == [size]


def test_without_a_record_in_the_last_report_it_cannot_be_shorter(run: WorkerRun) -> None:
    Path(run.log(0)).write_bytes(b"x" * 100)
    spool = Spool(run, ranks=[0])
    spool.chunks()
    assert not spool.narrow()


def test_progress_is_more_than_the_server_had(run: WorkerRun) -> None:
    spool = Spool(run, ranks=range(2))
    assert spool.acknowledge({"from another version": 9, "log:0": 5})
    assert not spool.acknowledge({"log:0": 5})
    assert not spool.acknowledge({"log:0": 3, "log:1": 0})
    assert spool.acknowledge({"log:1": 4, "log:0": 3})
    assert not spool.acknowledge({})


def zeros(path: Path) -> int:
    """Return the number of zero bytes at the start of a file."""
    return len(path.read_bytes()) - len(path.read_bytes().lstrip(b"\0"))


def test_space_comes_back_in_stretches_of_what_is_kept(run: WorkerRun) -> None:
    path, kept = Path(run.log(0)), 4 * BLOCK
    path.write_bytes(b"x" * 20 * BLOCK)
    spool = Spool(run, ranks=[0], log_kept_bytes=kept)
    freed = []
    for acknowledged in (3, 4, 7, 8, 9, 20):
        spool.acknowledge({"log:0": acknowledged * BLOCK})
        spool.make_room()
        freed.append(zeros(path) // BLOCK)
    assert freed == [0, 4, 4, 8, 8, 16]
    assert path.stat().st_size == 20 * BLOCK


def test_records_keep_every_byte(run: WorkerRun) -> None:
    path = Path(run.metrics)
    path.write_bytes(b"{}\n" * 20 * BLOCK)
    spool = Spool(run, ranks=[], log_kept_bytes=BLOCK, log_held_bytes=BLOCK)
    spool.acknowledge({"metrics": path.stat().st_size})
    spool.make_room()
    assert zeros(path) == 0


def test_a_log_is_cut_in_the_middle_of_a_line(run: WorkerRun) -> None:
    Path(run.log(0)).write_bytes(b"unfinished")
    (chunk,) = Spool(run, ranks=[0]).chunks()
    assert content(chunk) == b"unfinished"


def test_a_file_system_without_holes_keeps_the_bytes(
    run: WorkerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_fd: int, _offset: int, _length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no holes")

    monkeypatch.setattr("worker.supervisor.spool._punch_hole", refuse)
    path = Path(run.log(0))
    path.write_bytes(b"x" * 4 * BLOCK)
    file = SpoolFile("log:0", path, whole_lines=False, owner=os.getuid())
    file.acknowledged = 4 * BLOCK
    assert not file.free(kept=BLOCK, held=8 * BLOCK)
    file.acknowledged = 0
    assert not file.free(kept=BLOCK, held=BLOCK), "nothing is lost"
    assert zeros(path) == 0


def test_a_hole_that_cannot_be_made_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * BLOCK)
    ctypes.set_errno(0)
    with path.open("r+b") as file, pytest.raises(OSError, match=r"fallocate$") as raised:
        _punch_hole(file.fileno(), 0, 0)
    assert raised.value.errno == errno.EINVAL


def test_a_hole_beyond_four_gibibytes_lies_where_it_should(tmp_path: Path) -> None:
    path, far = tmp_path / "log", 2**32
    with path.open("w+b") as file:  # sparse: two blocks on disk
        for start in (0, far):
            file.seek(start)
            file.write(b"x" * BLOCK)
        file.flush()
        _punch_hole(file.fileno(), far, BLOCK)
        for start, expected in ((0, b"x"), (far, b"\0")):
            file.seek(start)
            assert file.read(BLOCK) == expected * BLOCK
