"""Configuration and summary: on the page of a job, in comparisons and in the search."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from server.jobs.facts.store import report_facts
from server.jobs.jobs.service import delete
from server.telemetry.imports.store import start_import
from tests.actors import ADA
from tests.web.conftest import Theme, Visit
from tests.web.theatre import Theatre
from trainyard.protocol.past_runs.views import ImportedRun, ImportRequest
from trainyard.run.fact_types.fact_records import FactValue, RunFacts

SUMMARY: dict[str, FactValue] = {"best/accuracy": 0.9213, "epochs": 12, "converged": True}
CONFIG: dict[str, FactValue] = {
    **{f"layers.{number}.width": 64 * number for number in range(1, 18)},
    "optimizer.lr": 3e-05,
    "optimizer.name": "adamw",
    "data.path": "/data/" + "a-very-long-folder/" * 12,
    "evil": "<img src=x onerror=document.title='broken'>\u202e\x1b[31m",
}


@pytest.fixture(scope="module")
def runs(theatre: Theatre) -> Iterator[list[str]]:
    """Three jobs with facts; the first two share all values except two."""
    context = theatre.scenes.running.context
    made = []
    for number, name in enumerate(("facts-wide", "facts-narrow", "facts-other")):
        request = ImportRequest(
            run=ImportedRun(tool="mlflow", run_id=name, digest=f"sha256:{number:064x}", points=0),
            name=name,
            state="succeeded",
            start_time=1.7e9,
            seconds=60.0,
            last_step=1,
        )
        job_id = start_import(context, request, actor=ADA).job_id
        made.append(job_id)
        config = CONFIG if number < 2 else {"optimizer.name": "sgd"}
        lr = {"optimizer.lr": 3e-05 * (number + 1)}
        facts = RunFacts(config={**config, **lr}, summary={**SUMMARY, "epochs": 12 + number})
        with context.database.write() as connection:
            report_facts(connection, job_id, facts)
    yield made
    for job_id in made:
        delete(context, job_id, actor=ADA, checkpoints="keep")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_the_page_of_a_job_shows_both(
    visit: Visit, runs: list[str], theme: Theme, width: int
) -> None:
    watched = visit(f"/jobs/{runs[0]}?tab=facts", theme=theme, width=width)
    watched.settle()
    page = watched.page
    config = page.get_by_role("region", name="Configuration")
    expect(config).to_contain_text("3e-5")
    expect(config).to_contain_text("<img src=x onerror=document.title='broken'>\ufffd\ufffd[31m")
    expect(page.get_by_role("region", name="Summary")).to_contain_text("0.9213")
    assert "broken" not in page.title()
    assert watched.overflow() == 0
    assert watched.nameless() == []
    watched.keep(f"facts-{width}-{theme}")
    page.get_by_label("Find a name or a value").fill("adamw")
    expect(config).to_contain_text("1 of 21 values")
    expect(config.locator("dt")).to_have_text(["optimizer.name"])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_a_comparison_shows_what_differs(
    visit: Visit, runs: list[str], theme: Theme, width: int
) -> None:
    watched = visit(f"/compare?jobs={runs[0]},{runs[1]}", theme=theme, width=width)
    page = watched.page
    section = page.get_by_role("region", name="What differs")
    expect(section).to_contain_text("22 values in common")
    table = page.get_by_role("table", name="Configuration: what differs")
    expect(table.locator("tbody tr")).to_have_text(["optimizer.lr3e-56e-5"])
    summary = page.get_by_role("table", name="Summary: what differs")
    expect(summary.locator("tbody tr")).to_have_text(["epochs1213"])
    section.scroll_into_view_if_needed()
    assert watched.overflow() == 0
    watched.keep(f"facts-compare-{width}-{theme}")
    page.goto(f"{page.url},{runs[2]}")
    expect(table.locator("tbody tr")).to_have_count(12)
    page.get_by_role("button", name="All 21 values").click()
    expect(table.locator("tbody tr")).to_have_count(21)
    assert watched.overflow() == 0
    watched.keep(f"facts-compare-three-{width}-{theme}")


def test_the_list_is_searched_by_a_value(visit: Visit, runs: list[str]) -> None:
    watched = visit("/jobs")
    watched.settle()
    page = watched.page
    page.get_by_label("Search by words").fill("optimizer.lr=0.00006 facts")
    expect(page.locator("tr[data-job]")).to_have_count(1)
    expect(page.locator(f'tr[data-job="{runs[1]}"]')).to_be_visible()
