"""The bench: the jobs that a check submits, waits for and reads."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainyard.base.problems import Problem
from trainyard.client.errors import ConnectionFailedError, InvalidRequestError
from trainyard.client.sdk import Client
from trainyard.protocol.rest.common import ProblemDetails
from trainyard.protocol.states import JobState
from trainyard.prove.bench import (
    Bench,
    BenchKeys,
    CheckError,
    NotPossibleError,
    NotRunError,
)
from trainyard.prove.course import Course, compared_steps, differing_steps

DOCUMENT = {"name": "prove-x", "training": {"steps": 3}}
REFUSAL = ProblemDetails(title="no", status=422, detail="/parallelism/tp: no", request_id="r")


class Yard:
    """A server whose job passes through states."""

    def __init__(self, *states: JobState, refused_by: str = "") -> None:
        self.keys: list[str] = []
        self.cancelled: list[str] = []
        self._states = list(states) or [JobState.SUCCEEDED]
        self._refused_by = refused_by

    def plan(self, document: object) -> Any:
        if self._refused_by == "plan":
            raise InvalidRequestError(REFUSAL)
        return SimpleNamespace(
            fits=self._refused_by != "memory",
            warnings=[SimpleNamespace(detail="needs 30 GiB, more than a slot has")],
        )

    def submit(self, document: object, *, idempotency_key: str) -> Any:
        if self._refused_by == "submit":
            raise InvalidRequestError(REFUSAL)
        self.keys.append(idempotency_key)
        return self.job("j")

    def job(self, job_id: str) -> Any:
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        return SimpleNamespace(
            id=job_id,
            name="prove-x",
            state=state,
            reason="rank 1 is gone",
            pending=None,
            current_attempt=None,
            progress=SimpleNamespace(step=7),
        )

    def cancel(self, job_id: str, *, reason: str) -> None:
        self.cancelled.append(job_id)

    def metrics_csv(self, job_id: str, *, names: tuple[str, ...]) -> list[str]:
        return [
            "attempt,step,time,name,value",
            "1,1,,data_digest,aa",
            "2,2,,data_digest,bb",
            "1,1,5.0,train/loss,2.5",
            "2,2,6.0,train/loss,nan",
        ]


def bench(yard: Yard, folder: Path, *, seconds: float = 60.0) -> Bench:
    return Bench(
        cast(Client, yard),
        slots=2,
        device="cpu",
        keys=BenchKeys(own="k-0", reference="r"),
        folder=folder,
        deadline=time.monotonic() + seconds,
    )


def test_a_finished_job_leaves_its_spec_and_the_command_that_repeats_it(tmp_path: Path) -> None:
    yard = Yard(JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED)
    made = bench(yard, tmp_path)
    assert made.finish(DOCUMENT).state is JobState.SUCCEEDED
    spec = tmp_path / "specs" / "prove-x.json"
    assert made.commands == [f"trainyard submit {spec}"]
    assert '"steps": 3' in spec.read_text()
    assert made.jobs == ["j"]


def test_the_key_is_that_of_the_check_and_of_the_document(tmp_path: Path) -> None:
    yard = Yard()
    bench(yard, tmp_path).submit(DOCUMENT)
    bench(yard, tmp_path).submit(DOCUMENT)
    bench(yard, tmp_path).submit(DOCUMENT | {"training": {"steps": 4}})
    bench(yard, tmp_path).reference(DOCUMENT)
    first, again, changed, reference = yard.keys
    assert first == again
    assert len({first, changed, reference}) == 3
    assert reference.startswith("r-0-prove-x-")


def test_a_job_that_the_planner_refuses_is_not_possible(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError, match="/parallelism/tp"):
        bench(Yard(refused_by="plan"), tmp_path).submit(DOCUMENT)


def test_a_refusal_has_the_problems_without_the_title_of_every_refusal(tmp_path: Path) -> None:
    yard = Yard()
    problems = (Problem(pointer="/parallelism/tp", detail="tp=3 is not legal"),)

    def plan(document: object) -> Any:
        raise InvalidRequestError(REFUSAL.model_copy(update={"errors": problems}))

    yard.plan = plan  # type: ignore[method-assign]
    with pytest.raises(NotPossibleError, match=r"^tp=3 is not legal$"):
        bench(yard, tmp_path).require(DOCUMENT)
    assert yard.keys == []


def test_a_job_that_only_the_submission_refuses_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError):
        bench(Yard(refused_by="submit"), tmp_path).submit(DOCUMENT)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.STOPPED])
def test_a_job_that_does_not_succeed_is_an_error_with_its_reason(
    tmp_path: Path, state: JobState
) -> None:
    with pytest.raises(CheckError, match=rf"\(j\) is {state} at step 7: rank 1 is gone"):
        bench(Yard(state), tmp_path).finish(DOCUMENT)


def test_a_job_that_does_not_fit_into_the_slots_is_not_possible(tmp_path: Path) -> None:
    made = bench(Yard(refused_by="memory"), tmp_path)
    with pytest.raises(NotPossibleError, match="needs 30 GiB"):
        made.submit(DOCUMENT)
    assert not made.fits(DOCUMENT)


def test_a_reference_that_failed_before_is_tried_again(tmp_path: Path) -> None:
    yard = Yard(JobState.FAILED, JobState.CANCELLED, JobState.QUEUED, JobState.SUCCEEDED)
    assert bench(yard, tmp_path).reference(DOCUMENT).state is JobState.SUCCEEDED
    assert [key[:4] for key in yard.keys] == ["r-0-", "r-1-", "r-2-"]


def test_a_reference_beyond_the_deadline_goes_on_for_later_checks(tmp_path: Path) -> None:
    yard = Yard(JobState.RUNNING)
    with pytest.raises(CheckError, match="the time of the check is over"):
        bench(yard, tmp_path, seconds=-1.0).reference(DOCUMENT)
    assert yard.cancelled == []


def test_a_job_that_got_no_slots_shows_nothing(tmp_path: Path) -> None:
    yard = Yard(JobState.QUEUED)
    with pytest.raises(NotRunError, match="is queued"):
        bench(yard, tmp_path, seconds=-1.0).finish(DOCUMENT)
    assert yard.cancelled == ["j"]


def test_a_server_that_is_away_for_a_moment_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, calls = Yard(), []
    answer = yard.job

    def job(job_id: str) -> Any:
        calls.append(job_id)
        if len(calls) == 2:
            raise ConnectionFailedError("refused")
        return answer(job_id)

    monkeypatch.setattr(yard, "job", job)
    assert bench(yard, tmp_path).finish(DOCUMENT).state is JobState.SUCCEEDED
    assert len(calls) == 3


def test_a_job_beyond_the_deadline_is_cancelled(tmp_path: Path) -> None:
    yard = Yard(JobState.RUNNING)
    with pytest.raises(CheckError, match="the time of the check is over"):
        bench(yard, tmp_path, seconds=-1.0).finish(DOCUMENT)
    assert yard.cancelled == ["j"]


def test_a_course_has_digests_values_and_attempts(tmp_path: Path) -> None:
    found = bench(Yard(), tmp_path).course("j", "train/loss")
    assert found.digests == {1: "aa", 2: "bb"}
    assert found.attempts == {1: 1, 2: 2}
    assert found.of("train/loss")[1] == 2.5
    assert math.isnan(found.of("train/loss")[2])
    assert found.of("unknown") == {}


def test_unknown_and_differing_sequences_count_alike() -> None:
    expected = {1: "a", 2: "b", 3: "c"}
    assert differing_steps(expected, expected, steps=3) == 0
    assert differing_steps({1: "a", 2: "x"}, expected, steps=3) == 2
    assert differing_steps(expected, {}, steps=3) == 3, "an empty reference proves nothing"


def test_a_step_is_compared_if_both_sides_have_it() -> None:
    whole = Course(
        digests=dict.fromkeys((1, 2, 3, 4), "a"), values={"loss": {1: 1.0, 2: 1.0, 3: 1}}
    )
    assert compared_steps(whole, whole, "loss", steps=3) == 3
    assert compared_steps(whole, whole, "loss", steps=4) == 3
    assert compared_steps(whole, Course(digests={1: "a"}), "loss", steps=3) == 0
    fewer = Course(digests={1: "a", 2: "a"}, values={"loss": {2: 1.0, 3: 1.0}})
    assert compared_steps(fewer, whole, "loss", steps=3) == 1


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        ({1: 2.0, 2: 4.0}, 0.0),
        ({1: 2.0, 2: 4.4}, 0.1),
        ({1: 2.0}, math.inf),
        ({1: 2.0, 2: math.nan}, math.inf),
        ({1: 2.0, 2: math.inf}, math.inf),
    ],
)
def test_a_missing_or_infinite_value_never_agrees(
    found: dict[int, float], difference: float
) -> None:
    expected = Course(values={"loss": {1: 2.0, 2: 4.0}})
    off = Course(values={"loss": found}).off(expected, "loss", steps=2)
    assert off == pytest.approx(difference)
    assert Course().off(Course(), "loss", steps=2) == math.inf, "two empty courses prove nothing"
