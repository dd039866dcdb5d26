"""The file of lines continues after any contents left by an earlier supervisor."""

from __future__ import annotations

from pathlib import Path

from trainyard.protocol.record_parser import parse_record
from trainyard.run.artifacts.artifact_records import ArtifactLine, ArtifactRecord
from worker.artifacts.artifact_lines import COLLECTED, ArtifactLines


def line(name: str, end: int, *, process: int = 0) -> ArtifactLine:
    record = ArtifactRecord(time=1.0, kind="file", name=name)
    return ArtifactLine(process=process, end=end, record=record)


def lines_at(path: Path) -> ArtifactLines:
    return ArtifactLines(path, path.with_suffix(".json"))


def test_half_a_last_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "artifacts.jsonl"
    lines_at(path).append(line("a", 10))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    later = lines_at(path)
    assert path.read_bytes() == whole
    assert (later.count, later.offsets) == (1, {0: 10})
    later.append(line("b", 20))
    found = [parse_record(ArtifactLine, each) for each in path.read_bytes().splitlines()]
    assert [each.end for each in found] == [10, 20]


def test_a_line_that_is_no_record_does_not_hide_the_next(tmp_path: Path) -> None:
    path = tmp_path / "artifacts.jsonl"
    former = lines_at(path)
    former.append(line("a", 10))
    with path.open("ab") as file:
        file.write(b'\0\0\0\n{}\n[]\n{"process": 0, "end": 1, "record": [1]}\n\xff\n')
    former.append(line("b", 20))
    former.append(line("c", 0, process=COLLECTED))
    later = lines_at(path)
    assert (later.count, later.offsets[0], later.collected) == (3, 20, {"c"})
