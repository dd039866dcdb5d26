"""A page that stays open: changes by others, refusals, a server that returns."""

from __future__ import annotations

import re
import time
from itertools import pairwise

from playwright.sync_api import Page, Route, expect

from tests.web.actors import Run
from tests.web.conftest import Visit
from tests.web.theatre import Theatre

REFRESH_MS = 500
"""Pause of the dashboard between two reads of the end of a log (`REFRESH_PAUSE`)."""
READS = """() => performance.getEntriesByType('resource')
  .filter(({ name }) => name.includes('/logs?') && !name.includes('first_line='))
  .map(({ startTime }) => startTime)"""
"""When the reads of the end of a log began that have ended, in milliseconds."""


def stopped_job(theatre: Theatre) -> tuple[str, Run]:
    """Play a job of one slot that was stopped at step 20."""
    stage = theatre.scenes.running.stage
    job = stage.submit(name="shared", resources={"priority": 9})
    run = stage.start(job, seconds=1)
    run.train(20, seconds_per_step=0.1)
    run.ask_to_stop()
    run.save(kind="stop")
    run.end("stopped")
    return job, run


def test_a_dialog_stays_and_shows_that_its_action_is_gone(theatre: Theatre, visit: Visit) -> None:
    job, run = stopped_job(theatre)
    watched = visit(f"/jobs/{job}?do=resume")
    page = watched.page
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Resume on 1 slot")).to_be_enabled()
    again = run.stage.resume(job, seconds=1)
    expect(dialog.locator(".dialog-gone")).to_contain_text("Resume is no longer possible: the job")
    expect(dialog.get_by_role("button", name="Resume on 1 slot")).to_be_disabled()
    expect(page).not_to_have_url(re.compile("do="))
    dialog.get_by_role("button", name="Back").click()
    again.train(25)
    expect(page.locator(".job-title .state")).to_have_attribute("data-state", "running")
    page.wait_for_timeout(500)
    assert page.get_by_role("dialog").count() == 0
    again.end("succeeded")
    watched.forgive("409")


def test_a_verb_whose_button_goes_away_leaves_the_focus_in_the_page(
    theatre: Theatre, visit: Visit
) -> None:
    stage = theatre.scenes.running.stage
    job = stage.submit(name="focused", resources={"priority": 9})
    run = stage.start(job, seconds=1)
    run.train(20, seconds_per_step=0.1)
    page = visit(f"/jobs/{job}").page
    stop = page.locator(".job-head").get_by_role("button", name="Stop", exact=True)
    stop.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Stop", exact=True).press("Enter")
    expect(stop).to_have_count(0)
    expect(page.locator("#main")).to_be_focused()
    run.save(kind="stop")
    run.end("stopped")


def test_the_attempt_that_runs_is_shown_as_far_as_its_job(theatre: Theatre, visit: Visit) -> None:
    run = theatre.scenes.running
    page = visit(f"/jobs/{theatre.scenes.tale}?tab=attempts").page
    reached = page.get_by_role("row", name="10 resumed").get_by_text(f"{run.step:,}", exact=True)
    expect(reached).to_be_visible()
    run.train(run.step + 3)
    reached = page.get_by_role("row", name="10 resumed").get_by_text(f"{run.step:,}", exact=True)
    expect(reached).to_be_visible()


def test_a_launch_that_came_second_shows_the_refusal(theatre: Theatre, visit: Visit) -> None:
    job, run = stopped_job(theatre)
    watched = visit(f"/jobs/{job}?do=resume")
    page = watched.page
    dialog = page.get_by_role("dialog")
    launch = dialog.get_by_role("button", name="Resume on 1 slot")
    expect(launch).to_be_enabled()
    runs: list[Run] = []

    def be_first(route: Route) -> None:
        if not runs:
            runs.append(run.stage.resume(job, seconds=1))
        route.continue_()

    page.route("**/resume", be_first)
    launch.click()
    expect(dialog.get_by_role("alert")).to_contain_text("a job that has ended or runs")
    expect(dialog.locator(".dialog-gone")).to_be_visible()
    expect(dialog.get_by_role("alert")).to_contain_text("a job that has ended or runs")
    runs[0].end("succeeded")
    watched.forgive("409")


ILLEGAL = (
    ("Total steps", "0", "greater than or equal to 1"),
    ("Total steps", "-1", "greater than or equal to 1"),
    ("Total steps", "1000000000000", "less than or equal to 1000000000"),
    ("Micro-batch", "many", "many is no whole number"),
    ("Micro-batch", "0", "greater than or equal to 1"),
)


def test_an_illegal_number_is_explained_at_its_field(theatre: Theatre, visit: Visit) -> None:
    watched = visit(f"/jobs/{theatre.scenes.stopped}?do=resume")
    dialog = watched.page.get_by_role("dialog")
    launch = dialog.get_by_role("button", name="Resume on 2 slots")
    expect(launch).to_be_enabled()
    for field, typed, told in ILLEGAL:
        control = dialog.get_by_label(field)
        control.fill(typed)
        expect(dialog.locator(".field-wrong .field-error")).to_contain_text(told)
        expect(control).to_have_attribute("aria-invalid", "true")
        assert "/overrides" not in dialog.inner_text()
        expect(launch).to_be_disabled()
        control.fill("")
        expect(launch).to_be_enabled()
    watched.forgive("422")


def test_a_logout_in_one_tab_empties_the_others(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/jobs")
    first, second = watched.page, watched.page.context.new_page()
    second.goto(f"{theatre.url}/jobs/{theatre.scenes.done}")
    expect(second.get_by_role("heading", name="smoke")).to_be_visible()
    first.get_by_role("button", name="Log out").click()
    expect(second.get_by_role("heading", name="Log in to Trainyard")).to_be_visible()
    second.get_by_label("Token").fill(theatre.token)
    second.get_by_role("button", name="Log in").click()
    expect(second.get_by_role("heading", name="smoke")).to_be_visible()
    watched.forgive("401")


def test_what_could_not_be_read_is_read_when_the_server_is_back(
    theatre: Theatre, visit: Visit
) -> None:
    watched = visit("/nodes")
    page = watched.page
    api = re.compile("/api/v1/")
    page.context.route(api, lambda route: route.abort())
    page.goto(f"{theatre.url}/jobs/{theatre.scenes.done}")
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    page.context.unroute(api)
    expect(page.get_by_role("heading", name="smoke")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    watched.forgive_lost()


def test_a_failed_click_is_not_told_for_ever(theatre: Theatre, visit: Visit) -> None:
    run = theatre.scenes.running
    watched = visit(f"/jobs/{theatre.scenes.tale}")
    page = watched.page
    watched.settle()
    page.route("**/requests", lambda route: route.abort())
    page.get_by_role("button", name="Save now").click()
    expect(page.locator(".inline-error")).to_contain_text("The server does not answer")
    page.unroute("**/requests")
    run.train(run.step + 1)  # points are read again: the server answers
    expect(page.locator(".inline-error")).to_have_text("The server answers again. Try again.")
    watched.forgive_lost()


def test_a_followed_log_under_load_has_text_in_each_row(theatre: Theatre, visit: Visit) -> None:
    run = theatre.scenes.running
    page = visit(f"/jobs/{theatre.scenes.tale}?tab=logs").page
    expect(page.get_by_label("Follow")).to_be_checked()
    page.route("**/logs?*", slowly)
    writes = 0
    while writes < 12 or len(page.evaluate(READS)) < 5:
        run.write(0, [f"load {writes}.{n}" for n in range(300)])
        writes += 1
        page.wait_for_timeout(100)
        assert blank_rows(page) == []
    assert "load" in page.locator(".log-row").last.inner_text()  # new lines arrive continuously
    expect(page.get_by_text(f"load {writes - 1}.299", exact=True)).to_be_in_viewport()
    # The opening stream may cancel the first read with another. After that only events do.
    starts = sorted(page.evaluate(READS))[1:]
    assert min(later - earlier for earlier, later in pairwise(starts)) >= REFRESH_MS
    page.unroute_all(behavior="ignoreErrors")


def slowly(route: Route) -> None:
    """Answer a request after a delay longer than the time to the next event."""
    time.sleep(0.25)
    route.continue_()


def blank_rows(page: Page) -> list[str]:
    """Return the numbers of visible rows without text."""
    rows: list[str] = page.locator(".log-row").evaluate_all(
        """rows => rows.filter(row => row.querySelector('.log-text').textContent === '')
          .map(row => row.textContent)"""
    )
    return rows


def test_a_line_beyond_the_end_shows_the_end(theatre: Theatre, visit: Visit) -> None:
    page = visit(f"/jobs/{theatre.scenes.tale}?tab=logs&attempt=3&line=99999999").page
    told = page.get_by_role("status").filter(has_text="does not exist")
    expect(told).to_contain_text("the log ends at line 200,000")
    expect(page.locator(".log-selected")).to_contain_text("200000")
    expect(page.locator(".log-selected")).to_be_in_viewport()


def test_a_resize_begins_with_something_else_and_loses_no_step(
    theatre: Theatre, visit: Visit
) -> None:
    run = theatre.scenes.running
    page = visit(f"/jobs/{theatre.scenes.tale}?do=resize").page
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("input:checked")).not_to_have_attribute("data-world-size", "4")
    expect(dialog).to_contain_text("No step is lost")
    same = dialog.get_by_role("region", name="Stays the same")
    expect(same).to_contain_text(re.compile(r"step\s*as in the save"))
    expect(dialog).to_contain_text(f"now at step {run.step:,}")
    run.train(run.step + 2)
    expect(dialog).to_contain_text(f"now at step {run.step:,}")
    dialog.get_by_label("Total steps").fill("1e3")
    expect(dialog).to_contain_text("as soon as the values above are legal")
    expect(dialog.locator(".skeleton")).to_have_count(0)
    dialog.get_by_label("Total steps").fill("")
    dialog.locator("label", has_text="as before").locator("input").check()
    expect(dialog).to_contain_text("The job already runs like this")
    expect(dialog.get_by_role("button", name="Resize on")).to_be_disabled()


def test_jobs_that_have_not_ended_stand_first_and_are_counted(
    theatre: Theatre, visit: Visit
) -> None:
    watched = visit("/jobs")
    watched.settle()
    page = watched.page
    states: list[str] = page.locator("tr[data-job] .state").evaluate_all(
        "states => states.map(state => state.dataset.state)"
    )
    ended = [state in {"succeeded", "failed", "stopped", "cancelled"} for state in states]
    assert ended == sorted(ended)
    assert True in ended
    assert False in ended
    failed = page.get_by_role("button", name="failed").locator(".filter-count")
    expect(failed).to_have_text(str(states.count("failed")))
