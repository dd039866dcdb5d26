"""The trainer in a real launch: `torchrun ... -m trainer <run>`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.launch import torchrun
from tests.trainer.runs import JOB, Attempt, SmallJob
from trainyard.protocol.attempt import Overrides
from trainyard.protocol.record_parser import parse_record
from trainyard.run.directory import Phase
from trainyard.run.records import Heartbeat, Provenance
from trainyard.spec.layout import Layout

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 100.0


@contextmanager
def launched(run: Path, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
    """A launch that ends with the test; its output goes to the test's own."""
    process = subprocess.Popen(
        torchrun(ranks, "-m", "trainer", str(run)),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} took longer than {SECONDS} s"
        time.sleep(0.05)


def trains(run: Path) -> bool:
    return (run / "metrics.jsonl").exists() and len(Attempt(run).lines) >= 3


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # before it is opened, or before it is read
        return True


def endless(folder: Path) -> SmallJob:
    return SmallJob(folder).changed(folder, training={"steps": 1_000_000})


def test_a_launch_is_stopped_and_resumed_on_another_world_size(tmp_path: Path) -> None:
    job = endless(tmp_path)
    run = job.prepare(1, Layout(dp_shard=2))
    with launched(run, 2) as process:
        until(lambda: trains(run), "the first steps")
        heartbeat = parse_record(Heartbeat, (run / "heartbeat.json").read_text())
        assert heartbeat.phase in (Phase.TRAINING, Phase.SAVING)
        (run / "stop").touch()
        assert process.wait(SECONDS) == 0, "a clean stop is no failure"
    first = Attempt(run)
    assert first.outcome.outcome == "stopped"
    stopped_at = first.outcome.step
    provenance = parse_record(Provenance, (run / "provenance.json").read_text())
    assert "torch" in provenance.packages
    phases = [event.data["phase"] for event in first.events if event.kind == "phase"]
    assert phases == ["starting", "building_cache", "loading", "training", "ending"]

    last = job.committed()[f"{JOB}.a1.step-{stopped_at}"]
    run = job.prepare(2, Layout(), resume=last, overrides=Overrides(steps=stopped_at + 3))
    with launched(run, 1) as process:
        assert process.wait(SECONDS) == 0
    second = Attempt(run)
    assert second.outcome.outcome == "succeeded"
    assert list(second.lines) == [stopped_at + 1, stopped_at + 2, stopped_at + 3]
    tokens = 16 * 32
    assert second.values("train/tokens")[stopped_at + 1] == (stopped_at + 1) * tokens


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_leaves(tmp_path: Path) -> None:
    job = endless(tmp_path)
    run = job.prepare(1, Layout(dp_shard=2))
    with launched(run, 2) as process:
        until(lambda: trains(run), "the first steps")
        process.terminate()
        process.wait(SECONDS)
    outcome = Attempt(run).outcome
    assert outcome.outcome == "stopped"
    assert outcome.checkpoint_id == f"{JOB}.a1.step-{outcome.step}"
    assert outcome.checkpoint_id in job.committed()


def test_without_torchrun_the_only_rank_saves_and_leaves_on_sigterm(tmp_path: Path) -> None:
    """With any number of ranks in the spec, and without a supervisor."""
    asked = {
        "resources": {"world_size": 2, "device": "cpu"},
        "training": {"steps": 1_000_000},
    }
    (tmp_path / "spec.json").write_text(json.dumps(asked))
    command = [sys.executable, "-m", "trainer", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        until(lambda: trains(tmp_path), "the first steps")
        process.terminate()
        assert process.wait(SECONDS) == 0
    outcome = Attempt(tmp_path).outcome
    assert (outcome.outcome, outcome.failure) == ("stopped", None)
    assert list(Attempt(tmp_path).lines) == list(range(1, outcome.step + 1))
    assert outcome.checkpoint_id == f"job.a1.step-{outcome.step}"


@pytest.mark.parametrize(
    ("record", "ended_by", "stops"),
    [
        (None, 0, True),
        ("supervisor.secret", 0, False),  # the supervisor receives it too, and creates `stop`
        ("error.json", -signal.SIGTERM, False),
    ],
)
def test_sigterm_ends_a_rank_at_once_after_a_failure_alone(
    record: str | None, ended_by: int, stops: bool, tmp_path: Path
) -> None:
    if record is not None:
        (tmp_path / record).touch()
    code = (
        "import os, pathlib, signal; from trainyard.run.directory import RunDirectory;"
        "from trainer.process import stop_on_sigterm;"
        f"stop_on_sigterm(RunDirectory(pathlib.Path({str(tmp_path)!r})));"
        "forked = os.fork();"
        "signal.raise_signal(signal.SIGTERM) if forked == 0 else None;"
        "ended = os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]);"
        "assert ended == -signal.SIGTERM, ended;"
        f"assert not os.path.exists({str(tmp_path / 'stop')!r});"
        "signal.raise_signal(signal.SIGTERM)"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert ended.returncode == ended_by
    assert (tmp_path / "stop").exists() == stops


def test_a_failure_leaves_its_reason_and_no_process(tmp_path: Path) -> None:
    job = endless(tmp_path)
    (tmp_path / "data" / "text.txt").write_text("too short")
    run = job.prepare(1, Layout(dp_shard=2))
    with launched(run, 2) as process:
        assert process.wait(SECONDS) == 1
    attempt = Attempt(run)
    assert attempt.outcome.outcome == "failed"
    assert attempt.error.reason == "data_error"
    assert "text.txt" in str(attempt.error.path)


@pytest.mark.parametrize("victim", ["one rank", "torchrun"])
def test_a_kill_leaves_no_rank_behind(victim: str, tmp_path: Path) -> None:
    job = endless(tmp_path)
    run = job.prepare(1, Layout(dp_shard=2))
    with launched(run, 2) as process:
        until(lambda: trains(run), "the first steps")
        ranks = children(process.pid)
        assert len(ranks) == 2
        os.kill(ranks[1] if victim == "one rank" else process.pid, signal.SIGKILL)
        started = time.monotonic()
        until(lambda: all(map(gone, ranks)), "the end of the ranks")
        assert time.monotonic() - started < 10
        process.wait(SECONDS)
    assert not (run / "outcome.json").exists() or Attempt(run).outcome.outcome == "failed"
