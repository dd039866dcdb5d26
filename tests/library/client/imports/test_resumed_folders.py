"""One run of wandb in several folders, like a resumed offline run."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

from tests.event_files import varint
from tests.library.client.imports.read_runs import Point, points, runs
from trainyard.client.past_runs.past_run import PastRun


def losses(run: PastRun) -> list[Point]:
    return points(run, "loss")


def field(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def log(*records: bytes) -> bytes:
    """Return a log of wandb with records that fit into its first block."""
    content = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    for record in records:
        checksum = zlib.crc32(record, zlib.crc32(b"\x01"))
        content += struct.pack("<IHB", checksum, len(record), 1) + record
    assert len(content) < 32 * 1024
    return content


def run_record(run_id: str, *, project: str, started: int, lr: float) -> bytes:
    item = field(1, "lr") + field(8, json.dumps(lr))
    own = field(1, run_id) + field(3, project) + field(4, field(1, item)) + field(8, f"of {run_id}")
    return field(17, own + field(17, b"\x08" + varint(started)))


def history(step: int, time: float, loss: float) -> bytes:
    values = {"_step": step, "_timestamp": time, "loss": loss}
    items = (field(1, field(1, name) + field(8, json.dumps(v))) for name, v in values.items())
    return field(2, b"".join(items))


def offline(
    path: Path, stamp: str, run_id: str, *, started: int, steps: range, **more: str | float | bytes
) -> None:
    """Write the folder of an offline run; its values are its start."""
    folder = path / f"offline-run-{stamp}-{run_id}"
    folder.mkdir()
    lr, project = float(more.get("lr", 0.1)), str(more.get("project", "p"))
    records = [run_record(run_id, project=project, started=started, lr=lr)]
    records += [history(step, started + step, float(started)) for step in steps]
    end = more.get("end", b"")
    assert isinstance(end, bytes)
    content = log(*records, *filter(None, [end]))
    (folder / f"run-{run_id}.wandb").write_bytes(content)


EXIT = field(18, b"\x08\x00")


def test_folders_of_one_run_are_one_run_in_the_order_of_their_start(tmp_path: Path) -> None:
    # The names of folders do not decide: clocks and time zones differ.
    offline(tmp_path, "20250102_000000", "abcd1234", started=1000, steps=range(6))
    offline(tmp_path, "20250101_000000", "abcd1234", started=2000, steps=range(4, 9), lr=0.2)
    offline(tmp_path, "20250103_000000", "abcd1234", started=3000, steps=range(9, 11), end=EXIT)
    offline(tmp_path, "20250103_000001", "other123", started=1500, steps=range(2))
    found = {run.run_id: run for run in runs("wandb", tmp_path)}
    assert {*found} == {"abcd1234", "other123"}
    run = found["abcd1234"]
    assert losses(run) == [
        *((step, 1000.0) for step in range(4)),
        *((step, 2000.0) for step in range(4, 9)),
        *((step, 3000.0) for step in range(9, 11)),
    ]
    assert (run.started, run.ended, run.state, run.name) == (1000, 3010, "succeeded", "of abcd1234")
    assert run.config == {"lr": 0.1}, "the last part gives it"
    assert found["other123"].state == "stopped"
    assert any("3 files" in note for note in run.notes)


def test_a_last_part_without_an_end_is_no_success(tmp_path: Path) -> None:
    offline(tmp_path, "1", "abcd1234", started=1000, steps=range(3), end=EXIT)
    offline(tmp_path, "2", "abcd1234", started=2000, steps=range(3, 5))
    (run,) = runs("wandb", tmp_path)
    assert (run.state, run.reason) == ("stopped", "no end is recorded")


def test_one_id_in_two_projects_is_two_runs(tmp_path: Path) -> None:
    offline(tmp_path, "1", "baseline", started=1000, steps=range(3), project="a")
    offline(tmp_path, "2", "baseline", started=2000, steps=range(3), project="b")
    assert [run.points for run in runs("wandb", tmp_path)] == [3, 3]
