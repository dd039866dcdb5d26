"""The output of `watch`, and its end."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import cast

import pytest
from rich.console import Console

from trainyard.cli.commands.metrics import _Follower, _following
from trainyard.cli.commands.watch import Lines, follow, panel, watch_job
from trainyard.client.sdk import Client
from trainyard.client.stream import ITEM, Resync
from trainyard.protocol.event_kinds import EventKind, NoticeKind
from trainyard.protocol.rest.events import AnyStreamItem
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.rest.metrics_and_logs import LogLine, LogPage
from trainyard.spec.job import JobSpec

AT = "2026-01-01T00:00:00Z"


def job(state: str, *, step: int = 0, phase: str | None = None, reason: str = "") -> JobView:
    return JobView.model_validate(
        {
            "id": "01jd0000000000000000000000",
            "name": "llama-7",
            "tags": (),
            "state": state,
            "reason": reason or None,
            "attempt": 2,
            "world_size": 4,
            "layout": "FSDP 4",
            "priority": 0,
            "progress": progress(step, phase=phase),
            "created_at": AT,
            "updated_at": AT,
            "started_at": AT,
            "ended_at": None,
            "description": "",
            "spec": JobSpec(),
            "set_fields": (),
            "effective_spec": JobSpec(),
            "changes": (),
            "desired": "run",
            "pending": None,
            "current_attempt": None,
            "retries_left": 2,
            "verbs": ("stop",),
            "forked_from": None,
            "fork_parts": None,
            "project": "default",
            "priority_words": "normal",
        }
    )


def progress(step: int, *, phase: str | None = "training") -> dict[str, object]:
    return {
        "phase": phase,
        "step": step,
        "steps": 100,
        "loss": "NaN" if step == 99 else 2.5,
        "tokens_per_second": 12_345.0,
        "seconds_left": 130.0,
    }


def event(kind: EventKind, message: str = "") -> AnyStreamItem:
    return ITEM.validate_python(
        {
            "id": 1,
            "at": AT,
            "kind": kind,
            "job_id": None,
            "attempt": 2,
            "node": None,
            "actor": "scheduler",
            "message": message,
            "data": {},
        }
    )


def points(step: int) -> AnyStreamItem:
    return ITEM.validate_python(
        {
            "at": AT,
            "kind": NoticeKind.METRICS,
            "job_id": "j",
            "attempt": 2,
            "node": None,
            "data": {"step": step, "values": {}, "progress": progress(step)},
        }
    )


class Script:
    """A server that plays items of a stream, each with the state of the job at that time."""

    def __init__(self, *scenes: tuple[AnyStreamItem | Resync, JobView]) -> None:
        self.scenes = scenes
        self.now = scenes[0][1]
        self.read = 0

    def stream(self, *, job_id: str) -> Iterator[AnyStreamItem | Resync]:
        for item, now in self.scenes:
            self.now = now
            yield item
        raise AssertionError("watched on after the end")

    def job(self, job_id: str) -> JobView:
        self.read += 1
        return self.now


def watch(script: Script, screen: Lines) -> JobView:
    return follow(cast(Client, script), "id", screen)


def test_it_prints_every_event_up_to_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    running, done = job("running", step=1), job("succeeded", step=100)
    script = Script(
        (Resync(), job("queued", reason="needs 4 slots, 2 free")),
        (event(EventKind.PLACED, "Attempt 2 got 4 slots"), running),
        (event(EventKind.ATTEMPT_ENDED, "attempt 2 succeeded"), done),
        (event(EventKind.JOB_ENDED, "it is over"), done),
    )
    assert watch(script, Lines()).state == "succeeded"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("llama-7  ○ queued")
    assert lines[0].endswith("needs 4 slots, 2 free")
    assert [line[10:] for line in lines[1:4]] == [
        "Attempt 2 got 4 slots",
        "attempt 2 succeeded",
        "it is over",
    ]
    assert lines[4].startswith("llama-7  ✓ succeeded  step 100/100 (100 %)")


def test_a_job_that_has_ended_is_shown_at_once() -> None:
    assert watch(Script((Resync(), job("failed"))), Lines()).state == "failed"


@pytest.mark.parametrize(
    ("state", "as_json"), [("failed", False), ("failed", True), ("stopped", False)]
)
def test_after_a_failure_it_names_the_commands_that_explain_it(
    state: str, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    script = cast(Client, Script((Resync(), job(state))))
    assert watch_job(script, "01jd", as_json=as_json).state == state
    told = capsys.readouterr().err
    named = "trainyard show 01jd" in told and "trainyard logs 01jd" in told
    assert named == (state == "failed" and not as_json)


def test_progress_comes_from_the_events_and_not_too_often(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = iter(range(100))
    metrics = [(points(step), job("running")) for step in range(10, 20)]
    done = job("succeeded", step=100)
    script = Script((Resync(), job("running")), *metrics, (event(EventKind.JOB_ENDED), done))
    watch(script, Lines(now=lambda: float(next(seconds))))
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if "step 1" in line and "running" in line]
    assert script.read == 2
    assert 2 <= len(shown) < 10
    assert shown[0].endswith("loss 2.5000  12.3k tokens/s  2m 10s left  FSDP 4  attempt 2")


def test_the_last_line_is_the_job_also_where_points_come_after_its_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = iter(range(0, 1000, 10))
    done = job("succeeded", step=100)
    late = (event(EventKind.ATTEMPT_ENDED), done), (points(100), done)
    script = Script((Resync(), job("running")), *late, (event(EventKind.JOB_ENDED), done))
    watch(script, Lines(now=lambda: float(next(seconds))))
    lines = capsys.readouterr().out.splitlines()
    assert sum("✓ succeeded" in line for line in lines) == 1
    assert "✓ succeeded" in lines[-1]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_panel_never_wraps(columns: int) -> None:
    text = io.StringIO()
    shown = job("running", step=99, phase="saving", reason="r" * 300)
    Console(file=text, width=columns).print(panel(shown))
    lines = text.getvalue().splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= columns
    if columns == 200:
        assert "● running  saving" in lines[1]
        assert "loss NaN" in lines[3]


class Logbook(Script):
    """The same with the lines of rank 0 by attempt."""

    def __init__(self, *scenes: tuple[AnyStreamItem | Resync, JobView], lines: list[str]) -> None:
        super().__init__(*scenes)
        self.lines = lines
        self.open: str | None = None

    def logs(self, job_id: str, *, attempt: int, first_line: int | None, **_: int) -> LogPage:
        stored = [*enumerate(self.lines[attempt - 1].split())]
        shown = stored[-1:] if first_line is None else stored[first_line:]
        return LogPage(
            attempt=attempt,
            rank=0,
            ranks=[0],
            lines=[LogLine(number=number, text=text) for number, text in shown],
            first_line=0,
            total_lines=len(stored),
            first_error_line=None,
            dropped_bytes=0,
            open_line=self.open,
        )


def test_following_reads_attempts_that_passed_while_the_stream_was_interrupted() -> None:
    view = job("running")
    begun = view.model_copy(update={"attempt": 1})
    wrote = ITEM.validate_python(
        {
            "at": AT,
            "kind": NoticeKind.LOG,
            "job_id": "j",
            "attempt": 3,
            "node": None,
            "data": {"rank": 0, "lines": 1},
        }
    )
    book = Logbook(
        (Resync(), begun),
        (wrote, view),
        (event(EventKind.JOB_ENDED), view),
        lines=["one two", "three four", "five"],
    )
    lines = _following(cast(Client, book), "j", attempt=None, rank=0, lines=1)
    first = next(lines)
    book.lines[0] = "one two traceback"
    texts = [each if isinstance(each, str) else each.text for each in (first, *lines)]
    assert texts == [
        "two",
        "traceback",
        "three",
        "four",
        "five",
    ]


class Terminal(io.StringIO):
    """A stdout that is a terminal or not."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_followed_bar_changes_in_place_on_a_terminal_alone(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = job("running").model_copy(update={"attempt": 1})
    book = Logbook((Resync(), view), (event(EventKind.JOB_ENDED), view), lines=["one"])
    book.open = "20%"
    out = Terminal(is_terminal=is_terminal)
    monkeypatch.setattr(sys, "stdout", out)
    with _Follower(as_json=False) as follower:
        for each in _following(cast(Client, book), "j", attempt=None, rank=0, lines=1):
            follower.write(each)
            if book.open == "20%" and isinstance(each, str):
                book.open, book.lines[0] = None, "one 20%Error:"
    clear = "\r\x1b[K"
    assert out.getvalue() == f"one\n20%{clear}20%Error:\n" if is_terminal else "one\n20%Error:\n"
