"""Everyday use: ticks after Back, a slow server, a phone, the next action."""

from __future__ import annotations

import re

from playwright.sync_api import Page, Route, ViewportSize, expect

from tests.web.conftest import Visit
from tests.web.theatre import Theatre

PHONE = ViewportSize(width=390, height=844)


def test_ticks_stay_after_back(theatre: Theatre, visit: Visit) -> None:
    page = visit("/jobs").page
    for name in ("debug", "smoke"):
        page.get_by_role("checkbox", name=f"Compare {name}", exact=True).check()
    page.get_by_role("link", name="Compare", exact=True).last.click()
    expect(page).to_have_url(re.compile("/compare"))
    page.go_back()
    expect(page.get_by_text("2 jobs ticked")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page).not_to_have_url(re.compile("pick="))


def test_what_is_for_the_admin_offers_nothing_to_others(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/tokens")
    page = watched.page
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("button", name="New token")).to_have_count(0)
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    watched.forgive("403")


def test_the_head_of_a_job_offers_a_fork_and_presses_no_finished_job_to_go_on(
    theatre: Theatre, visit: Visit
) -> None:
    page = visit(f"/jobs/{theatre.scenes.stopped}").page
    expect(page.locator(".job-head .button-primary")).to_have_text("Resume")
    page.get_by_role("button", name="Fork", exact=True).click()
    expect(page.get_by_role("dialog", name="Fork step 180 of attempt 1")).to_be_visible()
    page = visit(f"/jobs/{theatre.scenes.done}").page
    expect(page.get_by_role("button", name="Fork", exact=True)).to_be_visible()
    expect(page.locator(".job-head .button-primary")).to_have_count(0)


def test_a_page_that_waits_for_the_server_shows_it(theatre: Theatre, visit: Visit) -> None:
    page = visit("/nodes").page
    held: list[Route] = []
    page.route("**/api/v1/queue*", lambda route: held.append(route))
    page.get_by_role("link", name="Queue").click()
    waits = page.get_by_text("Waiting for the server…")
    expect(waits).to_be_visible()
    for route in held:
        route.continue_()
    page.unroute("**/api/v1/queue*")
    expect(waits).to_have_count(0)


def test_a_start_without_output_shows_what_it_does(theatre: Theatre, visit: Visit) -> None:
    page = visit(f"/jobs/{theatre.scenes.fresh}?tab=logs").page
    expect(page.get_by_text("The attempt starts")).to_be_visible()
    page = visit(f"/jobs/{theatre.scenes.stopped}?tab=ranks").page
    expect(page.get_by_text(re.compile("No times of ranks$"))).to_be_visible()


def test_nothing_is_cut_on_a_phone_or_on_a_desk(theatre: Theatre, visit: Visit) -> None:
    page = visit("/goodput").page
    expect(page.get_by_role("table").first).to_be_visible()
    assert cut_tables(page) == []
    page.set_viewport_size(PHONE)
    page.goto(f"{theatre.url}/jobs/{theatre.scenes.stopped}?tab=checkpoints")
    for name in ("Resume from step 180 of attempt 1", "Delete step 180 of attempt 1"):
        button = page.get_by_role("button", name=name)
        expect(button).to_be_visible()
        box = button.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE["width"]


def cut_tables(page: Page) -> list[str]:
    """Return the names of tables that are wider than their frame."""
    found: list[str] = page.locator(".table-frame").evaluate_all(
        "frames => frames.filter(frame => frame.scrollWidth > frame.clientWidth + 1)"
        ".map(frame => frame.querySelector('table').getAttribute('aria-label'))"
    )
    return found


def test_the_fork_that_is_open_stays_the_one_that_was_chosen(
    theatre: Theatre, visit: Visit
) -> None:
    run = theatre.scenes.running
    page = visit(f"/jobs/{theatre.scenes.tale}").page
    page.get_by_role("button", name="Fork", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(page).to_have_url(re.compile(r"fork=\w+\.a\d+\.step-\d+"))
    title = dialog.get_by_role("heading").first.text_content()
    dialog.get_by_label("Changed settings").fill("optimizer.lr=1e-5")
    run.train(run.step + 2)
    run.save()
    page.wait_for_timeout(500)  # for the event of the save
    expect(dialog.get_by_label("Changed settings")).to_have_value("optimizer.lr=1e-5")
    expect(dialog.get_by_role("heading").first).to_have_text(str(title))


def test_a_closed_dialog_leaves_no_step_of_the_back_button(theatre: Theatre, visit: Visit) -> None:
    page = visit("/jobs").page
    page.goto(f"{page.url.removesuffix('/jobs')}/jobs/{theatre.scenes.stopped}")
    dialog = page.get_by_role("dialog")
    page.get_by_role("tab", name="Checkpoints").click()
    for button in (
        page.get_by_role("button", name="Fork step 180 of attempt 1"),
        page.get_by_role("button", name="Resume from step 180 of attempt 1"),
        page.locator(".job-head").get_by_role("button", name="Fork", exact=True),
        page.locator(".job-head").get_by_role("button", name="Resume"),
    ):
        button.click()
        dialog.get_by_role("button", name="Close").click()
        expect(dialog).to_have_count(0)
        expect(page).to_have_url(re.compile(r"tab=checkpoints$"))
    page.go_back()
    expect(page).to_have_url(re.compile(rf"/jobs/{theatre.scenes.stopped}$"))
    page.goto(f"{page.url}?do=resume")  # like a link
    dialog.get_by_role("button", name="Close").press("Enter")
    expect(dialog).to_have_count(0)
    expect(page).to_have_url(re.compile(rf"/jobs/{theatre.scenes.stopped}$"))


def test_back_closes_a_dialog_and_stays_on_the_tab(theatre: Theatre, visit: Visit) -> None:
    page = visit(f"/jobs/{theatre.scenes.stopped}").page
    page.get_by_role("tab", name="Checkpoints").click()
    dialog = page.get_by_role("dialog")
    for button in ("Fork step 180 of attempt 1", "Resume from step 180 of attempt 1"):
        page.get_by_role("button", name=button).click()
        expect(dialog).to_be_visible()
        page.go_back()
        expect(dialog).to_have_count(0)
        expect(page).to_have_url(re.compile(r"tab=checkpoints$"))
    page.locator(".job-head").get_by_role("button", name="Resume").click()
    expect(dialog).to_be_visible()
    page.go_back()
    expect(dialog).to_have_count(0)
    expect(page).to_have_url(re.compile(r"tab=checkpoints$"))


def test_a_phone_shows_the_open_page_and_whole_events(theatre: Theatre, visit: Visit) -> None:
    page = visit("/projects", **PHONE).page
    active = page.get_by_role("navigation", name="Pages").get_by_role("link", name="Projects")
    expect(active).to_be_in_viewport(ratio=1)
    watched = visit(f"/jobs/{theatre.scenes.stopped}?tab=events", **PHONE)
    watched.settle()
    frame = watched.page.locator(".table-frame")
    assert frame.evaluate("frame => frame.scrollWidth - frame.clientWidth") == 0
    expect(frame.locator(".events-message").first).to_be_visible()


def test_the_button_of_a_header_stays_behind_its_dialog(theatre: Theatre, visit: Visit) -> None:
    page = visit("/sources", admin=True).page
    button = page.get_by_role("button", name="Add a source", exact=True)
    before = button.bounding_box()
    button.click()
    expect(page.get_by_role("dialog", name="Add a source")).to_be_visible()
    assert page.locator(".page-header > .button").bounding_box() == before
