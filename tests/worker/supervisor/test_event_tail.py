"""Event files become records of metrics: once, for any contents, and bounded."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.event_files import event, framed, varint
from tests.worker.fake_server import content
from trainyard.protocol.record_parser import parse_record
from trainyard.run.metric_names import legal_name
from trainyard.run.other_tools.event_files import Scalar, read_events
from trainyard.run.records import MetricRecord
from worker.node.node_store import WorkerRun
from worker.supervisor import event_tail
from worker.supervisor.event_tail import EventTail
from worker.supervisor.spool import Spool

NAME = "events.out.tfevents.1.host.1.0"


def write(run: WorkerRun, records: Iterable[bytes], name: str = NAME) -> Path:
    path = Path(run.tensorboard) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(records))
    return path


def converted(run: WorkerRun) -> list[MetricRecord]:
    lines = Path(run.event_records).read_bytes().splitlines()
    return [parse_record(MetricRecord, line) for line in lines]


def steps(run: WorkerRun, name: str = "loss") -> list[int]:
    return [record.step for record in converted(run) if name in record.values]


def test_scalars_of_a_step_become_one_record(run: WorkerRun) -> None:
    tail = EventTail(run)
    assert not tail.convert()
    write(run, [event(1, train__loss=0.5), event(1, lr=2), event(2, train__loss=math.nan)])
    assert tail.convert()
    assert not tail.convert()
    first, second = converted(run)
    assert (first.step, first.time) == (1, 1.7e9 + 1)
    assert first.values == {"train/loss": 0.5, "lr": 2.0}
    assert math.isnan(second.values["train/loss"])


def test_folders_precede_the_names(run: WorkerRun) -> None:
    write(run, [event(1, loss=1)])
    write(run, [event(1, loss=2)], f"eval/best run/{NAME}")
    write(run, [event(2, loss=3)], f"eval/best run/{NAME}.later")
    EventTail(run).convert()
    assert [(r.step, r.values) for r in converted(run)] == [
        (1, {"eval/best run/loss": 2.0}),
        (2, {"eval/best run/loss": 3.0}),
        (1, {"loss": 1.0}),
    ]


def test_what_is_being_written_waits_for_its_end(run: WorkerRun) -> None:
    tail, whole = EventTail(run), event(1, loss=1) + event(2, loss=2)
    for byte in range(len(whole)):
        write(run, [whole[byte : byte + 1]])
        tail.convert()
    assert steps(run) == [1, 2]


def test_a_later_process_continues(run: WorkerRun) -> None:
    write(run, [event(step, loss=1) for step in range(3)])
    EventTail(run).convert()
    write(run, [event(step, loss=1) for step in range(3, 5)])
    again = EventTail(run)
    assert again.convert()
    assert steps(run) == [0, 1, 2, 3, 4]
    Path(run.event_offsets).write_text("[")
    EventTail(run).convert()  # the server takes each step once
    assert steps(run) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_a_report_takes_a_bounded_part_and_every_file_has_its_turn(
    run: WorkerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_tail, "TURN_BYTES", 400)
    for name in ("a", "b"):
        write(run, [event(step, loss=1) for step in range(50)], f"{name}/{NAME}")
    tail = EventTail(run)
    tail.convert()
    tail.convert()
    first = len(converted(run))
    assert first <= 20
    assert steps(run, "b/loss")
    spool = Spool(run, ranks=[], event_tail=tail)
    stored = b""
    while not spool.drained:
        for chunk in spool.chunks():
            stored += content(chunk)
            spool.acknowledge({chunk.file: chunk.end})
    assert stored == Path(run.event_records).read_bytes()
    assert steps(run, "a/loss") == steps(run, "b/loss") == [*range(50)]


def test_a_damaged_record_is_passed_over_and_a_damaged_length_ends_the_file(
    run: WorkerRun, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = event(1, loss=1), bytearray(event(2, loss=2))
    bad[-6] ^= 1
    path = write(run, [good, bytes(bad), event(3, loss=3), b"\0" * 100, event(4, loss=4)])
    tail = EventTail(run)
    while tail.convert():
        pass
    assert steps(run) == [1, 3]
    assert caplog.text.count("is damaged near byte") == 1
    with path.open("ab") as file:  # a hole of a terabyte
        os.ftruncate(file.fileno(), 2**40)
    assert not tail.convert()


def test_what_is_no_scalar_is_not_read(run: WorkerRun) -> None:
    image = framed(b"\x2a" + varint(300_000) + bytes(300_000))
    write(
        run, [image, event(1, loss=1), framed(b"\xff\xff\xff"), event(-5, loss=9), event(2, loss=2)]
    )
    tail = EventTail(run)
    while tail.convert():
        pass
    assert steps(run) == [1, 2]


def test_links_pipes_and_files_of_others_are_not_read(run: WorkerRun, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / NAME).write_bytes(event(1, secret=1))
    folder = Path(run.tensorboard)
    folder.mkdir()
    (folder / "linked").symlink_to(outside)
    (folder / NAME).symlink_to(outside / NAME)
    os.mkfifo(folder / f"{NAME}.pipe")
    write(run, [event(1, loss=1)], f"own/{NAME}")
    (folder / f"{NAME}.hidden").write_bytes(event(1, hidden=1))
    (folder / f"{NAME}.hidden").chmod(0)
    EventTail(run).convert()
    names = {name for record in converted(run) for name in record.values}
    assert names - {"hidden"} == {"own/loss"}  # root reads a file of mode 000
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    write(run, [event(2, loss=1)], f"own/{NAME}")
    assert not EventTail(run).convert()


def test_folders_without_end_are_bounded(run: WorkerRun, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = "/".join("d" * 30)
    write(run, [event(1, loss=1)], f"{deep}/{NAME}")
    assert not EventTail(run).convert()
    monkeypatch.setattr(event_tail, "MAX_FILES", 3)
    for number in range(10):
        write(run, [event(1, loss=1)], f"{number}/{NAME}")
    tail = EventTail(run)
    while tail.convert():
        pass
    assert len(json.loads(Path(run.event_offsets).read_text())["files"]) == 3
    monkeypatch.setattr(event_tail, "MAX_BYTES", 10)
    write(run, [event(2, loss=1)], f"0/{NAME}")
    assert not tail.convert()


def test_a_file_that_a_rank_put_there_is_not_written(run: WorkerRun, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    Path(run.event_records).symlink_to(target)
    write(run, [event(1, loss=1)])
    assert not EventTail(run).convert()
    assert target.read_text() == ""


def test_what_tensorboard_wrote_is_read(tmp_path: Path) -> None:
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(tmp_path))
    for step in range(3):
        writer.add_scalar("a/loss", 1 / (step + 1), step)
        writer.add_scalar("new", float(step), step, new_style=True)
        writer.add_text("text", "words", step)
    writer.add_hparams({"lr": 0.1, "kind": "mlp", "bias": True}, {"hparam/best": 0.5})
    writer.close()
    found = []
    for path in sorted(tmp_path.rglob("*tfevents*")):
        with path.open("rb") as file:
            found.append(read_events(file, start=0, limit=2**20))
    rows = (each for one in found for each in one.scalars if isinstance(each, Scalar))
    scalars = {(row.tag, row.step): row.value for row in rows}
    assert [scalars["new", step] for step in range(3)] == [0.0, 1.0, 2.0]
    assert scalars["a/loss", 1] == 0.5
    assert "text" not in {tag for tag, _ in scalars}
    hyperparameters = {k: v for one in found for k, v in one.hyperparameters.items()}
    assert hyperparameters == {"lr": 0.1, "kind": "mlp", "bias": True}


def test_tags_that_are_cut_stay_apart(run: WorkerRun) -> None:
    tags = ["t" * 90 + end for end in "ab"]
    write(run, [event(1, **{tags[0]: 1.0, tags[1]: 2.0})])
    EventTail(run).convert()
    (record,) = converted(run)
    assert record.values == {legal_name(tag): n for tag, n in zip(tags, (1.0, 2.0), strict=True)}
    assert len(record.values) == 2
