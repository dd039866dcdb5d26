"""Restarts in event files become lines that name the removed steps, once and bounded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.event_files import event, session_start
from trainyard.protocol.record_parser import parse_record
from trainyard.run.records import MetricRecord, SeriesRestart
from worker.node.node_store import WorkerRun
from worker.supervisor import event_tail
from worker.supervisor.event_tail import EventTail

FIRST, SECOND = "events.out.tfevents.1.host.1.0", "events.out.tfevents.2.host.2.0"


def write(run: WorkerRun, records: Iterable[bytes], name: str) -> None:
    path = Path(run.tensorboard) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(records))


def scalars(first: int, last: int, **values: float) -> list[bytes]:
    return [event(step, **(values or {"loss": 1.0})) for step in range(first, last)]


def lines(run: WorkerRun) -> list[MetricRecord]:
    found: list[MetricRecord] = []
    for line in Path(run.event_records).read_bytes().splitlines():
        kind = SeriesRestart if "names" in json.loads(line) else MetricRecord
        found.append(parse_record(kind, line))
    return found


def shown(run: WorkerRun) -> dict[str, list[int]]:
    """Return the steps of each series after all lines, as a server would store them."""
    kept: dict[str, list[int]] = {}
    for line in lines(run):
        for name in line.names if isinstance(line, SeriesRestart) else ():
            kept[name] = [step for step in kept[name] if step < line.step]
        for name in line.values:
            own = kept.setdefault(name, [])
            if not own or line.step > own[-1]:
                own.append(line.step)
    return kept


def read_all(run: WorkerRun, tail: EventTail) -> None:
    while tail.convert():
        pass


def test_a_restart_takes_back_the_series_of_its_folder(run: WorkerRun) -> None:
    write(run, scalars(0, 150), FIRST)
    write(run, scalars(0, 90, lr=1.0), FIRST)
    write(run, scalars(0, 150), f"eval/{FIRST}")
    tail = EventTail(run)
    read_all(run, tail)
    write(run, [session_start(100), *scalars(105, 120)], SECOND)
    read_all(run, tail)
    (restart,) = (line for line in lines(run) if isinstance(line, SeriesRestart))
    assert (restart.step, restart.names, restart.values) == (100, ("loss",), {})
    assert shown(run)["loss"] == [*range(100), *range(105, 120)]
    assert shown(run)["eval/loss"] == [*range(150)]


def test_a_first_session_takes_nothing_back(run: WorkerRun) -> None:
    write(run, [session_start(0), session_start(-3), *scalars(0, 3)], FIRST)
    read_all(run, EventTail(run))
    assert shown(run) == {"loss": [0, 1, 2]}
    assert not any(isinstance(line, SeriesRestart) for line in lines(run))


def test_a_later_process_knows_what_was_written_before(run: WorkerRun) -> None:
    write(run, scalars(0, 150), FIRST)
    read_all(run, EventTail(run))
    write(run, [session_start(100)], SECOND)
    read_all(run, EventTail(run))
    write(run, [session_start(50), *scalars(60, 62)], SECOND)
    read_all(run, EventTail(run))
    assert shown(run)["loss"] == [*range(50), 60, 61]


def test_records_that_come_twice_end_as_they_should(run: WorkerRun) -> None:
    write(run, scalars(0, 150), FIRST)
    write(run, [session_start(100), *scalars(105, 120)], SECOND)
    read_all(run, EventTail(run))
    Path(run.event_offsets).unlink()
    read_all(run, EventTail(run))
    assert shown(run)["loss"] == [*range(100), *range(105, 120)]


def test_the_state_of_an_older_worker_is_read(run: WorkerRun) -> None:
    write(run, scalars(0, 3), FIRST)
    Path(run.event_offsets).write_text(json.dumps({FIRST: len(event(0, loss=1.0))}))
    read_all(run, EventTail(run))
    assert shown(run)["loss"] == [1, 2]


def test_files_of_a_folder_are_read_one_after_the_other(
    run: WorkerRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a restart in the second would come before the end of the first."""
    monkeypatch.setattr(event_tail, "TURN_BYTES", 400)
    write(run, scalars(0, 150), FIRST)
    write(run, [session_start(100), *scalars(100, 140)], SECOND)
    write(run, scalars(0, 50), f"eval/{FIRST}")
    tail = EventTail(run)
    for _ in range(3):
        tail.convert()
    assert "eval/loss" in shown(run), "each folder has its turn"
    read_all(run, tail)
    assert shown(run)["loss"] == [*range(140)]
    restart = next(at for at, line in enumerate(lines(run)) if isinstance(line, SeriesRestart))
    assert sum("loss" in line.values for line in lines(run)[:restart]) == 150


def test_restarts_are_bounded(
    run: WorkerRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_tail, "MAX_RESTARTS", 2)
    monkeypatch.setattr(event_tail, "MAX_SERIES", 2)
    monkeypatch.setattr(event_tail, "MAX_RESTARTED", 1)
    for step in (9, 8, 7):
        write(run, [event(step, a=1, b=1, c=1), session_start(step)], FIRST)
    read_all(run, EventTail(run))
    restarts = [line for line in lines(run) if isinstance(line, SeriesRestart)]
    assert [(each.step, each.names) for each in restarts] == [
        (9, ("a",)),
        (9, ("b",)),
        (8, ("a",)),
        (8, ("b",)),
    ]
    assert caplog.text.count("restarts after the first 2") == 1
