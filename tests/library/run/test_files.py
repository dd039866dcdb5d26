"""The files of a run directory, for writers and readers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.protocol.record_parser import parse_record
from trainyard.run.control_files import (
    answer_file,
    answer_files,
    order_stop,
    post_request,
    request_files,
    stop_deadline,
    write_answer,
)
from trainyard.run.directory import Phase, RunDirectory
from trainyard.run.failures import Failure, FailureReason
from trainyard.run.record_files import append_record, create_record
from trainyard.run.records import (
    EventRecord,
    Heartbeat,
    MetricRecord,
    Outcome,
    Request,
    RequestAnswer,
)

LIBRARY = Path(__file__).parents[3] / "library"
BARE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from trainyard.run.control_files import order_stop, should_stop
from trainyard.run.directory import Phase, RunDirectory
from trainyard.run.record_files import append_record, create_record, replace_record
from trainyard.run.records import EventRecord, Heartbeat, MetricRecord, Outcome
run = RunDirectory(Path(sys.argv[2]))
for step in (1, 2):
    metrics = MetricRecord(step=step, time=0.5, values={"train/loss": float("nan")})
    append_record(run.metrics, metrics)
event = EventRecord(time=0.5, kind="phase", step=2, data={"phase": "training"})
append_record(run.events, event)
replace_record(run.heartbeat, Heartbeat(phase=Phase.TRAINING, step=2, time=0.5))
outcome = Outcome(outcome="stopped", step=2, checkpoint_id="\\0" + "x" * 5000)
assert create_record(run.outcome, outcome)
assert not should_stop(run)
order_stop(run)
assert should_stop(run)
outside = {name.partition(".")[0] for name in sys.modules} - {"trainyard", "__main__"}
assert not outside - sys.stdlib_module_names, outside
"""


def test_a_bare_interpreter_writes_what_programs_parse(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", "-c", BARE, str(LIBRARY), str(tmp_path)]
    subprocess.run(command, check=True)
    run = RunDirectory(tmp_path)
    lines = Path(run.metrics).read_text().splitlines()
    metrics = [parse_record(MetricRecord, line) for line in lines]
    assert [record.step for record in metrics] == [1, 2]
    assert repr(metrics[0].values) == "{'train/loss': nan}"
    event = parse_record(EventRecord, Path(run.events).read_bytes())
    assert event == EventRecord(time=0.5, kind="phase", step=2, data={"phase": "training"})
    heartbeat = parse_record(Heartbeat, Path(run.heartbeat).read_bytes())
    assert heartbeat == Heartbeat(phase=Phase.TRAINING, step=2, time=0.5)
    outcome = parse_record(Outcome, Path(run.outcome).read_bytes())
    assert (outcome.outcome, outcome.step, len(outcome.checkpoint_id or "")) == ("stopped", 2, 4000)


def test_the_first_error_and_outcome_of_a_node_stay(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    first, second = (Failure(reason=FailureReason.HANG, message=text) for text in "ab")
    assert [create_record(run.error, failure) for failure in (first, second)] == [True, False]
    assert parse_record(Failure, Path(run.error).read_bytes()) == first
    assert create_record(run.outcome, Outcome(outcome="failed", step=1, failure=first))
    assert not create_record(run.outcome, Outcome(outcome="succeeded", step=2))
    assert parse_record(Outcome, Path(run.outcome).read_bytes()).failure == first


def test_half_a_line_is_an_error_and_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, write = RunDirectory(tmp_path).events, os.write
    append_record(events, EventRecord(time=0.5, kind="phase", step=1))
    whole = Path(events).read_bytes()
    monkeypatch.setattr(os, "write", lambda fd, line: write(fd, line[:3]))
    with pytest.raises(OSError, match="only 3 of 47 bytes"):
        append_record(events, EventRecord(time=0.5, kind="phase", step=2))
    assert Path(events).read_bytes() == whole


def test_a_stop_is_not_written_through_a_link(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    Path(run.root).mkdir()
    Path(run.stop).symlink_to(tmp_path / "elsewhere")
    order_stop(run)
    assert not (tmp_path / "elsewhere").exists()


def test_a_stop_may_have_a_deadline(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert stop_deadline(run) is None
    order_stop(run)
    assert stop_deadline(run) is None  # an empty file is an order too
    order_stop(run, deadline=1_700_000_000.5)
    assert stop_deadline(run) == 1_700_000_000.5
    order_stop(run)  # revokes nothing
    order_stop(run, deadline=1_600_000_000.0)
    assert stop_deadline(run) == 1_600_000_000.0
    for text in ("nan", "soon", "1 2"):
        Path(run.stop).write_text(text)
        assert stop_deadline(run) is None


def test_a_deadline_is_not_written_through_a_link(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    Path(run.root).mkdir()
    Path(run.stop).symlink_to(tmp_path / "elsewhere")
    order_stop(run, deadline=1.0)
    assert not (tmp_path / "elsewhere").exists()
    assert stop_deadline(run) == 1.0


def test_requests_and_answers_are_found_by_their_ids(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert (list(request_files(run)), list(answer_files(run))) == ([], [])
    for request_id in ("b", "a"):
        post_request(run, request_id, Request(kind="save"))
    post_request(run, "a", Request(kind="profile"))  # sent twice: the first one stays
    write_answer(run, "a", RequestAnswer(ok=True, message="saved", step=1))
    assert [request_id for request_id, _ in request_files(run)] == ["a", "b"]
    assert [request_id for request_id, _ in answer_files(run)] == ["a"]
    found = dict(request_files(run))["a"]
    assert parse_record(Request, found.read_bytes()) == Request(kind="save")
    answer = parse_record(RequestAnswer, Path(answer_file(run, "a")).read_bytes())
    assert answer == RequestAnswer(ok=True, message="saved", step=1)
