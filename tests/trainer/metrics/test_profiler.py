"""Profiles of some steps of a running job, on request."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.trainer.runs import Attempt, Meddling, SmallJob
from trainyard.spec.layout import Layout

TWO = Layout(dp_shard=2)


def asked(folder: Path, *requests: tuple[int, str, str], steps: int = 9) -> Attempt:
    """Send a request to a job on two ranks after some steps."""
    job = SmallJob(folder).changed(folder, training={"steps": steps})
    return job.launch(1, TWO, Meddling(ask_after=requests))


def answers(attempt: Attempt) -> dict[str, tuple[bool, int, str]]:
    return {
        str(e.data["request_id"]): (bool(e.data["ok"]), e.step, str(e.data["message"]))
        for e in attempt.events
        if e.kind == "request_answered"
    }


def operators(trace: Path) -> list[str]:
    with gzip.open(trace, "rt") as file:
        return [event["name"] for event in json.load(file)["traceEvents"] if "name" in event]


def test_profiles_of_one_rank_and_of_all_in_turn(tmp_path: Path) -> None:
    attempt = asked(
        tmp_path,
        (1, "a", '{"kind": "profile", "steps": 2}'),
        (1, "b", '{"kind": "profile", "steps": 1, "ranks": "all"}'),
    )
    profiles = attempt.run / "profiles"
    first = profiles / "steps-3-4.rank-0.json.gz"
    assert sorted(p.name for p in profiles.iterdir()) == [
        "steps-3-4.rank-0.json.gz",
        "steps-6-6.rank-0.json.gz",
        "steps-6-6.rank-1.json.gz",
    ]
    found = answers(attempt)
    assert found["a"] == (True, 4, f"steps 3-4 in {first}")
    ok, step, message = found["b"]
    assert (ok, step) == (True, 6)
    assert message.endswith(
        "rank-0.json.gz, and up to rank-1 in the same folder of each rank's node"
    )
    updates = [name for name in operators(first) if name.startswith("Optimizer.step")]
    assert len(updates) == 2, "two steps, whole"
    assert any("all_gather" in name for name in operators(profiles / "steps-6-6.rank-1.json.gz"))


def test_the_end_cuts_a_profile_short(tmp_path: Path) -> None:
    attempt = asked(tmp_path, (2, "a", '{"kind": "profile", "steps": 100}'), steps=6)
    ok, step, message = answers(attempt)["a"]
    assert (ok, step) == (True, 6)
    assert "steps 4-6 in " in message


def test_what_was_asked_too_late_is_answered(tmp_path: Path) -> None:
    attempt = asked(
        tmp_path, (5, "a", '{"kind": "profile"}'), (6, "b", '{"kind": "profile"}'), steps=6
    )
    ends = (False, 6, "training ended before the first step to record")
    assert answers(attempt) == {"a": ends, "b": ends}


def test_a_profile_that_cannot_be_written_does_not_end_the_training(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(tmp_path, training={"steps": 6})
    in_the_way = tmp_path / "runs" / "1" / "profiles"
    request = (1, "a", '{"kind": "profile", "steps": 1, "ranks": "all"}')
    meddling = Meddling(ask_after=(request,), make_file=str(in_the_way))
    attempt = job.launch(1, TWO, meddling)
    ok, step, message = answers(attempt)["a"]
    assert (ok, step) == (False, 3)
    assert "rank 0" in message
    assert "File exists" in message


@pytest.mark.parametrize(
    "content", ['{"kind": "profile", "steps": 0}', '{"kind": "profile", "x": 1}']
)
def test_a_request_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    attempt = asked(tmp_path, (1, "a", content), steps=5)
    ok, _, message = answers(attempt)["a"]
    assert not ok
    assert "no request that can be read" in message
