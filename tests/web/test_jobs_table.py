"""The jobs table in a browser: live without requests, filters in the URL, pages, keys."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.web.browser import Watched
from tests.web.conftest import Visit
from tests.web.theatre import Theatre

ENDED = {"succeeded", "failed", "stopped", "cancelled"}
ROW = "tr[data-job]"
MORE_THAN_A_PAGE = 110
ROWS_AT_ONCE = 60


def test_rows_come_change_and_go_without_the_list_being_read_again(
    theatre: Theatre, visit: Visit
) -> None:
    watched = visit("/jobs")
    page = watched.page
    watched.settle()
    expect(page.locator(".connection")).to_have_text("Live")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with theatre.api() as api:
        job = api.post("/jobs", json={"name": "from-elsewhere"}).json()["id"]
        row = page.locator(f'tr[data-job="{job}"]')
        expect(row.locator(".state")).to_have_attribute("data-state", "queued")
        states: list[str] = page.locator(f"{ROW} .state").evaluate_all(
            "states => states.map(state => state.dataset.state)"
        )
        ahead = states[: shown(page).index(job)]
        assert "running" in ahead
        assert not ENDED & {*ahead}
        api.post(f"/jobs/{job}/cancel", json={"reason": "only a test"}).raise_for_status()
        expect(row.locator(".state")).to_have_attribute("data-state", "cancelled")
        expect(row.locator(".row-reason")).to_contain_text("only a test")
        watched.rest()
        api.delete(f"/jobs/{job}").raise_for_status()
        expect(row).to_have_count(0)
    assert [url for url in asked if "/api/v1/jobs?" in url] == []


def test_the_url_holds_the_filter(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/jobs")
    page = watched.page
    watched.settle()
    page.get_by_role("button", name="failed").click()
    expect(page.locator(ROW).first.locator(".state")).to_have_attribute("data-state", "failed")
    page.wait_for_url("**/jobs?state=failed")
    page.locator(f'tr[data-job="{theatre.scenes.oom}"] .row-tag').first.click()
    page.wait_for_url("**/jobs?state=failed&tag=*")
    page.reload()
    watched.settle()
    expect(page.get_by_role("button", name="failed")).to_have_attribute("aria-pressed", "true")
    assert theatre.scenes.oom in shown(page)
    page.get_by_label("Search by words").fill("no-such-name")
    expect(page.get_by_role("heading", name="No job matches")).to_be_visible()
    page.get_by_role("button", name="Clear the filter").click()
    expect(page.locator(f'tr[data-job="{theatre.scenes.tale}"]')).to_have_count(1)


def test_long_lists_come_page_by_page_each_job_once_and_in_order(
    theatre: Theatre, visit: Visit
) -> None:
    with theatre.api() as api:
        made = [
            api.post("/jobs", json={"name": f"many-{n:03}", "tags": ["many"]}).json()["id"]
            for n in range(MORE_THAN_A_PAGE)
        ]
        watched = visit("/jobs?tag=many")
        page = watched.page
        expect(page.locator(".jobs-footer")).to_contain_text("100 jobs so far")
        expect(page.locator("table")).to_have_attribute("aria-rowcount", "101")
        seen = list(shown(page))
        while len(seen) < MORE_THAN_A_PAGE:
            assert page.locator("tr").count() < ROWS_AT_ONCE  # whatever the list's length
            page.mouse.wheel(0, 400)
            page.wait_for_timeout(50)
            seen += [job for job in shown(page) if job not in seen]
        expect(page.locator(".jobs-footer")).to_have_text(f"{MORE_THAN_A_PAGE} jobs")
        assert seen == sorted(made), "those that wait: the first one first"
        for job in made:
            api.post(f"/jobs/{job}/cancel", json={}).raise_for_status()
        expect(page.locator(f"{ROW} .state:not([data-state=cancelled])")).to_have_count(0)
        page.mouse.wheel(0, -1_000_000)  # to the newest, whose event is the last
        newest = page.locator(f'tr[data-job="{made[-1]}"] .state')
        expect(newest).to_have_attribute("data-state", "cancelled")
        watched.rest()
        for job in made:
            api.delete(f"/jobs/{job}").raise_for_status()
        expect(page.get_by_role("heading", name="No job matches")).to_be_visible()


def test_the_table_is_walked_by_keyboard(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/jobs")
    page = watched.page
    watched.settle()
    for key in ("j", "j", "ArrowDown", "k"):
        page.keyboard.press(key)
    second = page.locator(ROW).nth(1)
    expect(second.locator(".row-link")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Search by words")).to_be_focused()
    page.keyboard.type("jk")  # in a control these are letters
    expect(page.get_by_label("Search by words")).to_have_value("jk")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(theatre.scenes.done)
    expect(page.locator(ROW)).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{theatre.scenes.done}")


def test_nothing_moves_when_numbers_do(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/jobs")
    watched.settle()
    row = watched.page.locator(f'tr[data-job="{theatre.scenes.tale}"]')
    before = (row.bounding_box(), places(watched), row.locator(".row-loss").inner_text())
    run = theatre.scenes.running
    run.train(run.step + 3)
    expect(row.locator(".row-step")).to_contain_text(f"{run.step:,}")
    assert row.locator(".row-loss").inner_text() != before[2]
    assert (row.bounding_box(), places(watched)) == before[:2]


def shown(page: Page) -> list[str]:
    """Ids of the rows, from the top."""
    ids: list[str] = page.locator(ROW).evaluate_all("rows => rows.map(row => row.dataset.job)")
    return ids


def places(watched: Watched) -> list[float]:
    """Left edges of the columns."""
    edges: list[float] = watched.page.locator("th").evaluate_all(
        "cells => cells.map(cell => cell.getBoundingClientRect().left)"
    )
    return edges
