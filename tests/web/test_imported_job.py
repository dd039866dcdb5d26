"""The page of an imported run: its data, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.web.conftest import Visit
from tests.web.theatre import Theatre

LOSS = "train/loss"
OWN = "val/accuracy"
"""A name that the built-in trainer does not have."""
POINTS = 20


@pytest.fixture
def imported(theatre: Theatre) -> Iterator[str]:
    """Import a run, and return its job, which is deleted afterwards."""
    run = {
        "tool": "wandb",
        "run_id": "9dcz13mm",
        "digest": "sha256:" + "a" * 64,
        "points": 2 * POINTS,
    }
    body = {
        "run": run,
        "name": "calm-river",
        "arguments": {"lr": 0.01},
        "state": "failed",
        "reason": "exit code 1",
        "start_time": 1.7e9,
        "seconds": 60.0,
        "last_step": POINTS,
    }
    points = [[step, 1.7e9 + step, 1 / step] for step in range(1, POINTS + 1)]
    with theatre.api() as api:
        job_id = str(api.post("/imports", json=body).raise_for_status().json()["job_id"])
        batch = {"start": 0, "series": [{"name": each, "points": points} for each in (LOSS, OWN)]}
        api.post(f"/imports/{job_id}/points", json=batch).raise_for_status()
        yield job_id
        api.delete(f"/jobs/{job_id}").raise_for_status()


def test_it_shows_charts_and_the_configuration_and_offers_nothing_to_run(
    theatre: Theatre, visit: Visit, imported: str
) -> None:
    watched = visit(f"/jobs/{imported}")
    watched.settle()
    page = watched.page
    assert watched.points(LOSS) == POINTS
    expect(watched.figure(OWN)).to_have_attribute("data-points", str(POINTS))
    expect(page.get_by_role("button", name="more chart")).to_have_count(0)
    facts = page.get_by_role("list", name="About the job")
    expect(facts).to_contain_text("imported from wandb")
    expect(facts).not_to_contain_text("slot")
    assert page.get_by_role("tab").all_inner_texts() == ["Charts", "Facts", "Events", "Spec"]
    actions = page.locator(".job-actions").get_by_role("button").all_inner_texts()
    assert [text.strip() for text in actions] == ["Delete"]
    page.get_by_role("tab", name="Spec").click()
    expect(page.get_by_text("As recorded")).to_be_visible()
    expect(page.get_by_text("New job like this")).to_have_count(0)
    expect(page.locator(".spec-grid")).to_contain_text("0.01")
    page.goto(f"{theatre.url}/jobs")
    row = page.locator(f'tr[data-job="{imported}"]')
    expect(row).to_contain_text("imported from wandb: exit code 1")
