"""Configuration and summary on the command line: `show`, `compare` and `ps --search`."""

from __future__ import annotations

import json
from typing import Any

from server.jobs.facts.store import report_facts
from server.telemetry.imports.store import start_import
from tests.actors import ADA
from tests.library.conftest import Run, Yard
from trainyard.protocol.past_runs.views import ImportedRun, ImportRequest
from trainyard.run.fact_types.fact_records import FactValue, RunFacts


def past(yard: Yard, name: str, **arguments: Any) -> str:
    digest = "sha256:" + f"{len(name):x}" * 64
    request = ImportRequest(
        run=ImportedRun(tool="mlflow", run_id=name, digest=digest, points=0, summary={"best": 1.5}),
        name=name,
        arguments=arguments,
        state="succeeded",
        start_time=1.7e9,
        seconds=60.0,
        last_step=1,
    )
    return start_import(yard.harness.context, request, actor=ADA).job_id


def test_show_lists_both_and_counts_the_rest(yard: Yard, run: Run) -> None:
    past(yard, "one", lr=3e-05, wide=True, **{f"n{number}": number for number in range(50)})
    lines = [line.split() for line in run("show", "one").stdout.splitlines()]
    assert ["Configuration"] in lines
    assert ["lr", "3e-05"] in lines
    assert ["wide", "true"] in lines
    assert ["best", "1.5"] in lines
    assert "and 12 more: --json has all" in run("show", "one").stdout


def test_no_value_writes_to_the_terminal(yard: Yard, run: Run) -> None:
    job_id = past(yard, "evil")
    config: dict[str, FactValue] = {"text": "a\x1b[31m\u202ed", "n\no": "[red]x[/red]"}
    with yard.harness.context.database.write() as connection:
        report_facts(connection, job_id, RunFacts(config=config))
    shown = run("show", "evil").stdout
    assert "a\ufffd[31m\ufffdd" in shown
    assert "n\ufffdo" in shown
    assert "[red]x[/red]" in shown


def test_compare_has_the_values_that_differ(yard: Yard, run: Run) -> None:
    one = past(yard, "one", lr=0.1, seed=1, optimizer="adam")
    other = past(yard, "other", lr=0.2, seed=1)
    head, *rows = run("compare", one, other, "--facts").stdout.splitlines()
    assert head.split() == ["NAME", "1:", "one", "2:", "other"]
    assert [row.split() for row in rows] == [
        ["config", "lr", "0.1", "0.2"],
        ["config", "optimizer", "adam", "-"],
    ]
    whole = run("compare", "one", "other").stdout
    assert whole.startswith("No metrics yet.")
    assert "adam" in whole
    assert json.loads(run("compare", one, other, "--facts", "--json").stdout)["same"] == 2
    assert run("compare", one, "--facts").stdout == "No differences: 4 values in common.\n"


def test_ps_finds_a_value(yard: Yard, run: Run) -> None:
    one = past(yard, "one", lr=0.1)
    past(yard, "other", lr=0.2)
    (job,) = json.loads(run("ps", "--search", "lr=1e-1", "--json").stdout)
    assert job["id"] == one
