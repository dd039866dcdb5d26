"""Effects of a report: charts, progress, catalog, answers, the end of a share."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from server.core.context import Context
from server.core.database.tables import requests
from server.core.errors import InvalidRequestError
from server.core.expected_time import LONGEST_EXPECTED
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.parent import parent_checkpoint
from server.jobs.checkpoints.queries import list_checkpoints, read_checkpoint
from server.jobs.jobs.queries import job_view
from server.telemetry.ingest import parse
from server.telemetry.logs.pages import page
from server.telemetry.metrics.csv import csv_rows
from tests.server.harness import Harness, Launched
from tests.server.reports import chunk, json_lines, kept_events, loss, metric_lines, send
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.protocol.states import DesiredState, JobState
from trainyard.protocol.worker_messages import ARTIFACTS
from trainyard.run.directory import Phase
from trainyard.run.records import ExitRecord, Heartbeat, Request, RequestAnswer
from trainyard.spec.job import parse_job_spec


def test_nan_and_infinity_survive_from_the_line_to_the_chart(
    context: Context, launched: Launched
) -> None:
    job_id, supervisor = launched
    values = [1.0, math.nan, math.inf, -math.inf, 2.0]
    lines = json_lines(
        [
            {"step": step, "time": 1.0, "values": {"train/loss": value}}
            for step, value in enumerate(values, start=1)
        ]
    )
    send(context, supervisor, chunk("metrics", lines[: lines.rindex(b"\n", 0, -1) + 1]))
    (event,) = kept_events(context, "metrics")
    assert event["values"] == {"train/loss": "-Infinity"}
    assert event["progress"]["loss"] == "-Infinity"
    send(context, supervisor, chunk("metrics", lines))
    line = loss(context, job_id)
    assert line.non_finite == [0, 1, 1, 1, 0]
    assert line.last == [1.0, None, None, None, 2.0]
    rows = "".join(csv_rows(context, job_id, ["train/loss"], scope=SYSTEM_SCOPE)).split()[1:]
    assert [row.rsplit(",", 1)[1] for row in rows] == ["1.0", "nan", "inf", "-inf", "2.0"]


@pytest.mark.parametrize("step_seconds", [9e8, 1e300, 1.7e308, -1.0, math.nan], ids=str)
def test_no_reported_pace_gives_an_impossible_time(
    context: Context, launched: Launched, step_seconds: float
) -> None:
    job_id, supervisor = launched
    lines = metric_lines(1, 3, perf__step_seconds=step_seconds)
    send(context, supervisor, chunk("metrics", lines))
    left = supervisor.harness.job(job_id).progress.seconds_left
    expected = LONGEST_EXPECTED.total_seconds() if 0 < step_seconds < 1e9 else None
    assert left == expected


def test_progress_follows_the_lines(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched(
        resources={"world_size": 2}, training={"steps": 110, "global_batch_size": 16}
    )
    lines = metric_lines(1, 10, perf__tokens_per_second_per_device=500.0, perf__step_seconds=0.5)
    heartbeat = Heartbeat(phase=Phase.TRAINING, step=9, time=1.0)
    send(context, supervisor, chunk("metrics", lines), heartbeat=heartbeat)
    progress = harness.job(job_id).progress
    assert (progress.phase, progress.step, progress.loss) == (Phase.TRAINING, 10, 10.0)
    assert progress.tokens_per_second == 1000.0
    assert progress.seconds_left == pytest.approx(50.0)
    assert harness.attempt(job_id).last_step == 10
    assert harness.job(job_id).state == JobState.RUNNING
    (event,) = kept_events(context, "metrics")
    assert event["step"] == 10
    assert event["values"]["train/loss"] == 10.0
    later = Heartbeat(phase=Phase.TRAINING, step=14, time=2.0)
    send(
        context,
        supervisor,
        chunk("metrics", metric_lines(11, 12), start=len(lines)),
        heartbeat=later,
    )
    progress = harness.job(job_id).progress
    assert (progress.step, progress.loss) == (14, 12.0)  # the lines of two steps are still to come
    assert harness.attempt(job_id).last_step == 14


def committed(job_id: str, step: int, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    data: dict[str, Any] = {
        "format_version": 1,
        "checkpoint_id": f"{job_id}.a1.step-{step}",
        "job_id": job_id,
        "attempt": 1,
        "created_at": "2026-01-01T00:00:00Z",
        "train_state": {
            "step": step,
            "tokens": step * 2048,
            "data": {"position": step * 16, "consumed": step * 16, "dataset_digest": "d"},
        },
        "layout": {"dp_shard": 2},
        "seed": 0,
        "spec_digest": "s",
        "parent": None,
        "kind": "interval",
        "param_dtype": "float32",
        "torch_version": "2",
        "save_seconds": 0.5,
        "files": [
            {"path": ".metadata", "size": 10, "xxh3_128": "a" * 32},
            {"path": "__0_0.distcp", "size": 90, "xxh3_128": "b" * 32},
        ],
    }
    return {
        "time": 1.0,
        "kind": "checkpoint_committed",
        "step": step,
        "data": data | dict(changes or {}),
    }


def test_commits_enter_the_catalog_once(context: Context, launched: Launched) -> None:
    job_id, supervisor = launched
    spec = parse_job_spec({"training": {"steps": 90}})
    as_trained = {"spec": json.loads(spec.model_dump_json())}
    lines = json_lines(
        [committed(job_id, 0, {"kind": "preflight"}), committed(job_id, 50, as_trained)]
    )
    for _ in range(2):
        send(context, supervisor, chunk("events", lines))
    again = json_lines([committed(job_id, 50)])  # the trainer may report it again
    send(context, supervisor, chunk("events", again, start=len(lines)))
    views = list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)
    assert [(view.step, view.kind, view.size, view.on_lineage) for view in views] == [
        (50, "interval", 100, True),
        (0, "preflight", 100, True),
    ]
    assert views[0].place == f"checkpoints:{job_id}/a1/step-50"
    assert list_checkpoints(context, job_id, after=views[0].id, scope=SYSTEM_SCOPE) == views[1:]
    manifest = read_checkpoint(context, views[0].id, scope=SYSTEM_SCOPE).manifest
    assert isinstance(manifest, Manifest)
    assert (manifest.train_state.step, manifest.spec) == (50, spec)
    assert [event["step"] for event in kept_events(context, "checkpoint_committed")] == [0, 50]
    with context.database.read() as connection:
        newest = parent_checkpoint(connection, job_id)
    assert newest.id == views[0].id


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": 2},
        {"job_id": "other"},
        {"checkpoint_id": "other.a1.step-50"},
        {"files": []},
        {"kind": "a kind that is far too long for its column"},
        {"created_at": "2026-01-01T00:00:00"},
        {"created_at": "0001-01-01T00:00:00+14:00"},
        {"created_at": "9999-12-31T23:00:00-14:00"},
        {"param_dtype": "a type that no column holds"},
        {"parent": "01jd3m6y0000000000000000a7.a1.step-" + "9" * 200},
        {"parent": "a\0.a1.step-1"},
        {"files": [{"path": ".metadata", "size": 2**80, "xxh3_128": "a" * 32}]},
        {"save_seconds": "NaN"},
        {"writers": [{"rank": 0, "size": 90, "files": 1, "write_seconds": "Infinity"}]},
    ],
    ids=str,
)
def test_a_commit_that_is_not_of_this_attempt_is_not_listed(
    context: Context, launched: Launched, changes: dict[str, Any]
) -> None:
    job_id, supervisor = launched
    send(context, supervisor, chunk("events", json_lines([committed(job_id, 50, changes)])))
    assert list_checkpoints(context, job_id, scope=SYSTEM_SCOPE) == []
    assert len(kept_events(context, "line_skipped")) == 1


def test_the_catalog_has_what_a_save_cost(context: Context, launched: Launched) -> None:
    job_id, supervisor = launched
    rows = [
        {"rank": rank, "size": 45, "files": 1, "write_seconds": seconds}
        for rank, seconds in ((0, 0.2), (2, 0.3))
    ]
    settled = {"checkpoint_id": f"{job_id}.a1.step-50", "stall_seconds": 0.02}
    unknown = settled | {"checkpoint_id": "other.a1.step-50"}
    lines = json_lines([committed(job_id, 0), committed(job_id, 50, {"writers": rows})])
    later = json_lines(
        [
            {"time": 2.0, "kind": "checkpoint_settled", "step": 52, "data": data}
            for data in (settled, unknown)
        ]
    )
    send(context, supervisor, chunk("events", lines))
    (newest, _) = list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)
    assert (newest.writers, newest.write_seconds, newest.stall_seconds) == (2, 0.3, None)
    send(context, supervisor, chunk("events", later, start=len(lines)))
    (newest, first) = list_checkpoints(context, job_id, scope=SYSTEM_SCOPE)
    assert newest.stall_seconds == 0.02
    assert (first.writers, first.write_seconds, first.stall_seconds) == (None, None, None)
    manifest = read_checkpoint(context, newest.id, scope=SYSTEM_SCOPE).manifest
    assert isinstance(manifest, Manifest)
    assert [(writer.rank, writer.write_seconds) for writer in manifest.writers] == [
        (0, 0.2),
        (2, 0.3),
    ]
    (event,) = kept_events(context, "checkpoint_settled")
    assert event == settled


def test_saves_that_fail_are_shown_until_one_is_committed(
    context: Context, launched: Launched
) -> None:
    job_id, supervisor = launched
    failed = {
        "kind": "interval",
        "message": "rank 1: cannot write /c/x: No space left on device",
        "tries": 2,
        "failing_since": "2026-01-01T00:00:00Z",
        "next_try_at": "2026-01-01T00:00:10Z",
        "give_up_at": "2026-01-01T01:00:00Z",
        "saved_step": 50,
        "step": 57,
    }
    lines = json_lines([{"time": 1.0, "kind": "save_failed", "step": 57, "data": failed}])
    later = json_lines([committed(job_id, 60)])
    send(context, supervisor, chunk("events", lines))
    shown = _attempt(context, job_id).save_failed
    assert shown is not None
    assert shown.model_dump(mode="json") == failed
    (event,) = kept_events(context, "save_failed")
    assert event == failed
    send(context, supervisor, chunk("events", later, start=len(lines)))
    assert _attempt(context, job_id).save_failed is None


def _attempt(context: Context, job_id: str) -> AttemptView:
    attempt = job_view(context, job_id, scope=SYSTEM_SCOPE).current_attempt
    assert attempt is not None
    return attempt


@pytest.mark.parametrize("stall", [-1, "NaN", "Infinity"])
def test_a_stall_that_cannot_be_is_left_out(
    context: Context, launched: Launched, stall: float | str
) -> None:
    job_id, supervisor = launched
    data = {"checkpoint_id": f"{job_id}.a1.step-50", "stall_seconds": stall}
    line = {"time": 2.0, "kind": "checkpoint_settled", "step": 52, "data": data}
    send(context, supervisor, chunk("events", json_lines([line])))
    assert len(kept_events(context, "line_skipped")) == 1


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("checkpoint_settled", {"checkpoint_id": "a\0", "stall_seconds": 1.0}),
        ("request_answered", {"request_id": "a\0", "ok": True, "message": "done", "step": 1}),
        (
            "weights_loaded",
            {"place": "d:w", "files": [{"path": "w", "size": 2**80, "xxh3_128": ""}]},
        ),
    ],
)
def test_an_event_that_the_database_cannot_hold_is_skipped(
    context: Context, launched: Launched, kind: str, data: dict[str, Any]
) -> None:
    _, supervisor = launched
    line = json_lines([{"time": 1.0, "kind": kind, "step": 1, "data": data}])
    reply = send(context, supervisor, chunk("events", line))
    assert reply.acknowledged == {"events": len(line)}
    assert len(kept_events(context, "line_skipped")) == 1


def test_of_many_unreadable_lines_a_report_keeps_few(
    context: Context, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report may have millions of them, with half a kilobyte for each error."""
    reasons: list[ValueError] = []

    def reason(error: ValueError) -> str:
        reasons.append(error)
        return "unreadable"

    monkeypatch.setattr(parse, "_reason", reason)
    _, supervisor = launched
    send(context, supervisor, chunk(ARTIFACTS, b"\n" * 300))
    assert len(kept_events(context, "line_skipped")) == len(reasons) == 100


def test_a_value_that_the_database_refuses_is_the_reports_fault(
    harness: Harness, context: Context, launched: Launched
) -> None:
    job_id, supervisor = launched
    with pytest.raises(InvalidRequestError, match="the database refuses a value: Integer exceeds"):
        send(context, supervisor, chunk("log:0", b"x\n"), provenance={"cores": 2**80})
    assert harness.attempt(job_id).provenance is None
    assert send(context, supervisor, chunk("log:0", b"x\n")).acknowledged == {"log:0": 2}


def test_many_events_come_in_several_reports(context: Context, launched: Launched) -> None:
    _, supervisor = launched
    lines = json_lines(
        [{"time": 1.0, "kind": "stop_agreed", "step": step, "data": {}} for step in range(1200)]
    )
    stored, rounds = 0, 0
    while stored < len(lines):
        reply = send(context, supervisor, chunk("events", lines[stored:], start=stored))
        assert reply.acknowledged["events"] > stored
        stored, rounds = reply.acknowledged["events"], rounds + 1
    assert rounds == 3
    assert [event["step"] for event in kept_events(context, "stop_agreed")] == list(range(1200))


def test_requests_are_named_until_they_are_answered(
    harness: Harness, context: Context, launched: Launched
) -> None:
    job_id, supervisor = launched
    supervisor.train(1)
    with context.database.write() as connection:
        connection.execute(
            requests.insert().values(
                id="r1",
                attempt_id=supervisor.attempt_id,
                request=Request(kind="save"),
                created_at=context.now(),
            )
        )
    for _ in range(2):
        assert [pending.id for pending in send(context, supervisor).requests] == ["r1"]
    answer = RequestAnswer(ok=True, message="saved", step=7)
    for _ in range(2):
        reply = send(context, supervisor, answers={"r1": answer, "unknown": answer})
        assert reply.requests == ()
    assert harness.kinds(job_id).count("request_answered") == 1


def test_the_last_report_closes_logs_and_ends_the_share(
    harness: Harness, context: Context, launched: Launched
) -> None:
    job_id, supervisor = launched
    supervisor.train(1)
    record = ExitRecord(outcome="succeeded", failure=None, ranks=(), time=1.0)
    reply = send(context, supervisor, chunk("log:0", b"one\ntwo"), exit=record)
    assert reply.desired == DesiredState.RUN
    assert [line.text for line in page(context, job_id, scope=SYSTEM_SCOPE).lines] == ["one", "two"]
    assert harness.job(job_id).state == JobState.SUCCEEDED


def test_provenance_is_kept_from_the_first_report(
    harness: Harness, context: Context, launched: Launched
) -> None:
    job_id, supervisor = launched
    send(context, supervisor, provenance={"torch": "2.13"})
    send(context, supervisor, provenance={"torch": "other"})
    assert harness.attempt(job_id).provenance == {"torch": "2.13"}


def test_only_the_node_of_rank_0_reports_metrics(harness: Harness, context: Context) -> None:
    harness.add_node("node-1", slots=2)
    harness.add_node("node-2", slots=2)
    _, supervisors = harness.launched(
        resources={"world_size": 4}, training={"global_batch_size": 16}
    )
    send(context, supervisors[0], chunk("metrics", metric_lines(1, 2)), chunk("log:1", b"x\n"))
    send(context, supervisors[1], chunk("log:2", b"x\n"))
    with pytest.raises(InvalidRequestError, match="global rank 0"):
        send(context, supervisors[1], chunk("metrics", metric_lines(1, 2)))
    with pytest.raises(InvalidRequestError, match="2 to 3"):
        send(context, supervisors[1], chunk("log:1", b"x\n"))
