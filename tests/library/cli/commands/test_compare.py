"""`compare` and its SDK call against the real API."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest

from tests.library.conftest import Run, Yard
from tests.server.harness import Supervisor
from tests.server.reports import chunk, json_lines, send
from trainyard.client.errors import InvalidRequestError, NotFoundError

LOSS = "train/loss"


@pytest.fixture
def pair(yard: Yard) -> tuple[str, str]:
    """Two jobs: `wide` has taken 6 steps, one of them NaN; `narrow` 3, of twice the tokens."""
    ids = []
    for name, steps, tokens in (("wide", 6, 100), ("narrow", 3, 200)):
        job_id, [supervisor] = yard.harness.running(name=name)
        report(yard, supervisor, steps=steps, tokens=tokens)
        ids.append(job_id)
    return ids[0], ids[1]


def report(yard: Yard, supervisor: Supervisor, *, steps: int, tokens: int) -> None:
    lines = [
        {
            "step": step,
            "time": 1000.0 + 2 * step,
            "values": {
                LOSS: math.nan if step == 4 else 10.0 / step,
                "train/tokens": float(step * tokens),
            },
        }
        for step in range(1, steps + 1)
    ]
    send(yard.harness.context, supervisor, chunk("metrics", json_lines(lines)))


def test_the_table_has_a_line_for_each_series_and_job(
    yard: Yard, run: Run, pair: tuple[str, str]
) -> None:
    head, first, second = run("compare", "wide", pair[1]).stdout.splitlines()
    assert head.split()[:3] == ["METRIC", "JOB", "STATE"]
    assert first.split()[:2] == [LOSS, "wide"]
    assert first.split()[-4:] == ["1.6667", "1.6667", "10", "1"]
    assert second.split()[:2] == [LOSS, "narrow"]
    assert second.split()[-1] == "0"


def test_curves_as_csv_over_a_stretch_of_tokens(
    yard: Yard, run: Run, pair: tuple[str, str]
) -> None:
    told = run(
        "compare", "wide", "narrow", "--names", LOSS, "--x", "tokens", "--from", "200", "--to",
        "400", "--csv",
    )  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(told.stdout)))
    shown = [(r["name"], r["step"], r["tokens"], r["seconds"], r["last"]) for r in rows]
    assert shown == [
        ("wide", "2", "200.0", "2.0", "5.0"),
        ("wide", "3", "300.0", "4.0", "3.3333333333333335"),
        ("wide", "4", "400.0", "6.0", ""),
        ("narrow", "1", "200.0", "0.0", "10.0"),
        ("narrow", "2", "400.0", "2.0", "5.0"),
    ]
    assert [r["non_finite"] for r in rows] == ["0", "0", "1", "0", "0"]


def test_json_is_the_answer(yard: Yard, run: Run, pair: tuple[str, str]) -> None:
    answer = json.loads(run("compare", *pair, "--names", "train/tokens", "--json").stdout)
    assert [job["name"] for job in answer["jobs"]] == ["wide", "narrow"]
    assert answer["jobs"][1]["curves"][0]["last"] == [200.0, 400.0, 600.0]


def test_jobs_without_a_usual_series_are_compared_by_those_that_most_of_them_have(
    yard: Yard, run: Run
) -> None:
    for name, series in (("one", ("acc", "loss")), ("two", ("loss",))):
        _, [supervisor] = yard.harness.running(name=name)
        lines = [{"step": 1, "time": 1000.0, "values": dict.fromkeys(series, 0.5)}]
        send(yard.harness.context, supervisor, chunk("metrics", json_lines(lines)))
    _, *rows = run("compare", "one", "two").stdout.splitlines()
    assert [row.split()[:2] for row in rows] == [
        ["loss", "one"], ["loss", "two"], ["acc", "one"], ["acc", "two"],
    ]  # fmt: skip


def test_jobs_without_points_say_so(yard: Yard, run: Run) -> None:
    yard.harness.submit(name="waits")
    assert run("compare", "waits").stdout == "No metrics yet.\n"


def test_refusals_are_told(yard: Yard, run: Run, pair: tuple[str, str]) -> None:
    wrong = run("compare", *pair, "--names", "train/los")
    assert wrong.exit_code == 2
    assert "no compared job has the series 'train/los'" in wrong.stderr
    with yard.connect() as sdk:
        with pytest.raises(NotFoundError, match="no job has the id"):
            sdk.compare([pair[0], "0" * 26])
        with pytest.raises(InvalidRequestError, match="9 jobs; legal: 1 to 8"):
            sdk.compare([pair[0]] * 9)
