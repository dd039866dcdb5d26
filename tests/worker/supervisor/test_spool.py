"""The spool splits files into chunks that together are the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.fake_server import content
from trainyard.base.redaction import OutputMask
from trainyard.protocol.worker_messages import MAX_CHUNK_BYTES, MAX_REPORT_BYTES, Chunk
from worker.node.node_store import WorkerRun
from worker.supervisor.spool import CHUNK_BYTES, REPORT_BYTES, Spool, SpoolFile


@given(
    parts=st.lists(st.binary(max_size=40), max_size=8),
    limit=st.integers(1, 50),
    whole_lines=st.booleans(),
)
def test_chunks_put_together_are_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[bytes],
    limit: int,
    *,
    whole_lines: bool,
) -> None:
    path = tmp_path_factory.mktemp("spool") / "file"
    file = SpoolFile("metrics", path, owner=os.geteuid(), whole_lines=whole_lines)
    got, written = b"", b""
    for part in parts:
        written += part
        path.write_bytes(written)
        while chunk := file.next_chunk(limit):
            piece = content(chunk)
            assert (chunk.start, chunk.end) == (len(got), len(got) + len(piece))
            assert len(piece) <= limit or (whole_lines and piece.count(b"\n") == 1)
            assert not whole_lines or piece.endswith(b"\n")
            got += piece
            file.acknowledged = chunk.end
        assert file.drained
    expected = written[: written.rfind(b"\n") + 1] if whole_lines else written
    assert got == expected


@pytest.mark.parametrize("value", ["=" * 8, "abc" * 5, "correct horse battery"])
def test_a_run_of_a_secret_longer_than_chunks_is_sent_masked(tmp_path: Path, value: str) -> None:
    path = tmp_path / "log"
    size = len(value) * (2 * CHUNK_BYTES // len(value) + 1)
    path.write_bytes(value.encode() * (size // len(value)) + b"the end")
    mask = OutputMask([value])
    file = SpoolFile("log:0", path, owner=os.geteuid(), whole_lines=False, mask=mask)
    got = b""
    while chunk := file.next_chunk(CHUNK_BYTES):
        got += content(chunk)
        file.acknowledged = chunk.end
    assert got == b"*" * size + b"the end"


def test_a_line_larger_than_a_chunk_goes_whole(run: WorkerRun) -> None:
    line = b"x" * (3 * CHUNK_BYTES) + b"\n"
    Path(run.events).write_bytes(line + b"unfinished")
    (chunk,) = Spool(run, ranks=[]).chunks()
    assert content(chunk) == line


def test_a_report_stays_below_the_limit_and_every_log_gets_its_turn(run: WorkerRun) -> None:
    ranks = range(6)
    noise = bytes(range(256)) * (CHUNK_BYTES // 256) * 2
    for rank in ranks:
        Path(run.log(rank)).write_bytes(noise)
    Path(run.metrics).write_bytes(b"{}\n")
    spool = Spool(run, ranks=ranks)
    served = set()
    for turn in range(6):
        chunks = spool.chunks()
        assert sum(chunk.end - chunk.start for chunk in chunks) <= REPORT_BYTES
        assert sum(len(chunk.content) for chunk in chunks) < MAX_REPORT_BYTES
        assert all(chunk.end - chunk.start <= CHUNK_BYTES for chunk in chunks)
        assert ("metrics" in {chunk.file for chunk in chunks}) == (turn == 0)
        assert spool.acknowledge({chunk.file: chunk.end for chunk in chunks})
        served |= {chunk.file for chunk in chunks}
    assert {f"log:{rank}" for rank in ranks} <= served


def test_what_the_server_has_gives_its_disk_space_back(run: WorkerRun) -> None:
    kept = 64 * 1024
    path = Path(run.log(0))
    path.write_bytes(b"x" * kept * 4)
    spool = Spool(run, ranks=[0], log_kept_bytes=kept)
    before = path.stat()
    spool.acknowledge({"log:0": kept * 4})
    spool.make_room()
    after = path.stat()
    assert after.st_size == before.st_size
    assert after.st_blocks <= before.st_blocks // 2
    assert path.read_bytes().endswith(b"x" * kept)
    with path.open("ab") as file:  # the writer continues at its offset
        file.write(b"more")
    (chunk,) = spool.chunks()
    assert (chunk.start, content(chunk)) == (kept * 4, b"more")


def test_what_the_server_lacks_keeps_its_space_up_to_a_limit(run: WorkerRun) -> None:
    kept, held = 16 * 1024, 128 * 1024
    path = Path(run.log(0))
    path.write_bytes(b"x" * held)
    spool = Spool(run, ranks=[0], log_kept_bytes=kept, log_held_bytes=held)
    spool.make_room()
    assert path.read_bytes() == b"x" * held
    path.write_bytes(b"x" * (held + kept * 2))
    spool.make_room()  # no answer of the server is needed
    assert path.read_bytes() == b"\0" * kept * 2 + b"x" * held


def test_a_secret_across_the_end_of_dropped_bytes_is_masked(run: WorkerRun) -> None:
    """Its rest is the first of the output that the server gets."""
    value = "correct horse battery"
    path, kept, held = Path(run.log(0)), 16 * 1024, 128 * 1024
    spool = Spool(
        run, ranks=[0], log_kept_bytes=kept, log_held_bytes=held, mask=OutputMask([value])
    )
    before = b"x" * (2 * kept - 8) + value.encode()
    path.write_bytes(before + b"y" * (2 * kept + held - len(before)))
    spool.make_room()
    rest = path.read_bytes()[2 * kept :]
    assert rest.startswith(b"*" * (len(value) - 8) + b"yyy")
    assert len(rest) == held


def test_after_a_refusal_records_come_in_shorter_stretches_down_to_single_lines(
    run: WorkerRun,
) -> None:
    lines = [f"{number}\n".encode() for number in range(64)]
    Path(run.metrics).write_bytes(b"".join(lines))
    Path(run.log(0)).write_bytes(b"x" * 1000)
    spool = Spool(run, ranks=[0])
    assert not spool.narrow()  # nothing was sent yet
    counts = []
    while True:
        metrics, log = spool.chunks()
        counts.append(content(metrics).count(b"\n"))
        assert log.end == 1000
        if not spool.narrow():
            break
    assert counts[0] == 64
    assert counts[-1] == 1
    assert counts == sorted(counts, reverse=True)
    assert len(counts) < 10
    for _ in range(10):
        spool.widen()
    assert content(spool.chunks()[0]).count(b"\n") == 64


def test_a_line_that_no_chunk_can_hold_is_not_read_whole(run: WorkerRun) -> None:
    path = Path(run.metrics)
    path.write_bytes(b"{}\n")
    file = SpoolFile("metrics", path, owner=os.geteuid(), whole_lines=True)
    first = file.next_chunk(CHUNK_BYTES)
    assert first is not None
    file.acknowledged = first.end
    with path.open("r+b") as sparse:  # it costs its writer nothing
        sparse.truncate(MAX_CHUNK_BYTES + 10)
        sparse.seek(0, os.SEEK_END)
        sparse.write(b"\n{}\n")
    assert file.next_chunk(CHUNK_BYTES) is None
    assert file.drained


def test_an_event_waits_for_the_metrics_that_were_written_before_it(run: WorkerRun) -> None:
    metrics = b'{"step": 1}\n' * (3 * CHUNK_BYTES // 24)  # more than one report holds
    Path(run.metrics).write_bytes(metrics)
    Path(run.events).write_bytes(b'{"kind": "checkpoint_committed"}\n')
    spool = Spool(run, ranks=[])
    order = []
    while chunks := spool.chunks():
        order.append([chunk.file for chunk in chunks])
        spool.acknowledge({chunk.file: chunk.end for chunk in chunks})
    assert order == [["metrics"], ["metrics", "events"]]
    assert spool.drained


def test_an_event_that_is_written_meanwhile_comes_with_the_next_report(
    run: WorkerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(run.metrics).write_bytes(b'{"step": 1}\n')
    Path(run.events).write_bytes(b"")
    spool = Spool(run, ranks=[])
    read = SpoolFile.next_chunk

    def save(file: SpoolFile, limit: int) -> Chunk | None:
        found = read(file, limit)
        if file.name == "metrics":  # the rank goes on, logs, and commits
            with Path(run.metrics).open("ab") as more:
                more.write(b'{"step": 2}\n')
            with Path(run.events).open("ab") as more:
                more.write(b'{"step": 2, "kind": "checkpoint_committed"}\n')
        return found

    with monkeypatch.context() as patch:
        patch.setattr(SpoolFile, "next_chunk", save)
        (first,) = spool.chunks()
    spool.acknowledge({first.file: first.end})
    assert [chunk.file for chunk in spool.chunks()] == ["metrics", "events"]


def test_half_a_line_of_metrics_holds_no_event_back(run: WorkerRun) -> None:
    Path(run.metrics).write_bytes(b'{"step": 1}\n{"st')  # its writer was killed
    Path(run.events).write_bytes(b'{"kind": "phase"}\n')
    assert [chunk.file for chunk in Spool(run, ranks=[]).chunks()] == ["metrics", "events"]


def ranks_of(run: WorkerRun, count: int) -> Spool:
    """Return the spool of a program with a number of processes on this node."""
    Path(run.rank_metrics).mkdir()
    return Spool(run, ranks=[], processes=range(count))


def test_an_event_waits_for_the_metrics_of_all_ranks_of_the_node(run: WorkerRun) -> None:
    spool = ranks_of(run, 4)
    for rank in (1, 2, 3):  # together more than one report holds
        Path(run.metrics_of(rank)).write_bytes(b'{"step": 1}\n' * (CHUNK_BYTES // 12))
    Path(run.events).write_bytes(b'{"kind": "checkpoint_committed"}\n')
    order = []
    while chunks := spool.chunks():
        order.append({chunk.file for chunk in chunks})
        spool.acknowledge({chunk.file: chunk.end for chunk in chunks})
    assert len(order) == 2
    assert "events" not in order[0]
    assert "events" in order[1]


def test_a_rank_that_logs_without_end_holds_no_event_back(run: WorkerRun) -> None:
    spool = ranks_of(run, 3)
    Path(run.events).write_bytes(b'{"kind": "checkpoint_committed"}\n')
    for _ in range(4):
        for rank in (1, 2):
            with Path(run.metrics_of(rank)).open("ab") as more:
                more.write(b'{"step": 1}\n' * (2 * CHUNK_BYTES // 12))
        chunks = spool.chunks()
        if "events" in {chunk.file for chunk in chunks}:
            return
        spool.acknowledge({chunk.file: chunk.end for chunk in chunks})
    pytest.fail("the event never comes")


def test_a_file_of_a_rank_that_is_not_reported_holds_no_event_back(run: WorkerRun) -> None:
    spool = ranks_of(run, 2)
    with Path(run.metrics_of(1)).open("wb") as sparse:
        sparse.truncate(MAX_CHUNK_BYTES + 10)
    Path(run.events).write_bytes(b'{"kind": "phase"}\n')
    assert [chunk.file for chunk in spool.chunks()] == ["events"]
