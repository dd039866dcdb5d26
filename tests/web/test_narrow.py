"""Phones and keyboards: nothing is cut, covered or unreachable."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Locator, Route, expect

from tests.web.conftest import Visit
from tests.web.test_pages import NARROW
from tests.web.theatre import Theatre

LINE_PX = 24
"""More than one line of text is high, and less than two."""
OUTSIDE = """buttons => buttons.filter(button => {
  const frame = button.closest('.table-frame').getBoundingClientRect();
  const { left, right } = button.getBoundingClientRect();
  return left < frame.left || right > frame.right;
}).length"""
HIDDEN = """() => {
  const { activeElement } = document;
  const { left, top, width, height } = activeElement.getBoundingClientRect();
  const seen = document.elementFromPoint(left + width / 2, top + height / 2);
  return activeElement.contains(seen) ? null : activeElement.outerHTML.slice(0, 200);
}"""
"""What has the focus, where another thing lies over it."""


def height(locator: Locator) -> float:
    """Return the height of a visible element, in pixels."""
    box = locator.bounding_box()
    assert box
    return box["height"]


def test_the_reference_of_the_api_is_as_narrow_as_its_window(
    theatre: Theatre, visit: Visit
) -> None:
    watched = visit("/docs", **NARROW)
    expect(watched.page.get_by_role("heading", level=1)).to_be_visible()
    assert watched.overflow() == 0


def test_numbers_of_a_narrow_window_stand_on_one_line(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/nodes", **NARROW)
    page = watched.page
    page.get_by_role("button", name="Drain").first.click()
    count = page.get_by_role("dialog").get_by_text("4 slots", exact=True)
    assert height(count) < LINE_PX
    page.goto(f"{theatre.url}/jobs/new?from={theatre.scenes.tale}")
    sizes = page.locator(".legend-size")
    expect(sizes).to_have_count(6)
    assert max(map(height, sizes.all())) < LINE_PX


def test_a_card_of_the_queue_names_its_numbers(visit: Visit) -> None:
    page = visit("/queue", **NARROW).page
    named = page.locator("tr[data-job]").first.evaluate(
        """row => ['.queue-position', '.queue-start'].map(
          name => getComputedStyle(row.querySelector(name), '::before').content
        )"""
    )
    assert named == ['"position "', '"start "']


def test_ticked_jobs_can_be_compared_from_the_end_of_the_list(visit: Visit) -> None:
    page = visit("/jobs", **NARROW).page
    ticks = page.locator("tr[data-job] input")
    ticks.first.check()
    ticks.last.check()
    expect(page.get_by_role("status").filter(has_text="2 jobs ticked")).to_be_in_viewport()
    compare = page.locator(".page-actions").get_by_role("link", name="Compare")
    expect(compare).to_be_in_viewport()
    compare.click()
    expect(page).to_have_url(re.compile("/compare\\?jobs="))


def test_a_token_is_revoked_without_a_scroll_to_the_side(visit: Visit) -> None:
    page = visit("/tokens", admin=True, **NARROW).page
    revoke = page.get_by_role("row", name="ada").get_by_role("button", name="Revoke")
    expect(revoke).to_be_in_viewport(ratio=1)


def test_names_of_compared_jobs_begin_at_one_place(theatre: Theatre, visit: Visit) -> None:
    scenes = theatre.scenes
    page = visit(f"/compare?jobs={scenes.tale},{scenes.stopped}").page
    names = page.locator(".legend-job a")
    expect(names).to_have_count(2)
    lefts = [box["x"] for box in map(Locator.bounding_box, names.all()) if box]
    assert lefts[0] == lefts[1]


def test_buttons_of_the_dialog_of_a_priority_stand_apart(visit: Visit) -> None:
    page = visit("/queue", **NARROW).page
    page.get_by_role("button", name="normal").first.click()
    dialog = page.get_by_role("dialog")
    back = dialog.get_by_role("button", name="Back").bounding_box()
    change = dialog.get_by_role("button", name="Change").bounding_box()
    assert back
    assert change
    assert change["x"] - back["x"] - back["width"] >= 4


def test_actions_of_rows_are_in_sight(theatre: Theatre, visit: Visit) -> None:
    for path, verb in (("/tokens", "Revoke"), ("/projects", "Change default")):
        watched = visit(path, admin=True, **NARROW)
        watched.settle()
        buttons = watched.page.get_by_role("table").get_by_role("button", name=verb)
        expect(buttons.first).to_be_visible()
        assert buttons.evaluate_all(OUTSIDE) == 0, path


def test_actions_of_many_checkpoints_have_the_whole_width(theatre: Theatre, visit: Visit) -> None:
    watched = visit(f"/jobs/{theatre.scenes.tale}?tab=checkpoints", **NARROW)
    watched.settle()
    expect(watched.page.locator(".table-room").first).to_be_attached()
    cell = watched.page.locator(".checkpoint-actions").first
    assert cell.evaluate("cell => cell.offsetWidth") > 180


def test_what_has_the_focus_is_not_covered(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/jobs/new", admin=True, **NARROW)
    watched.settle()
    hidden = []
    for _ in range(60):
        watched.page.keyboard.press("Tab")
        hidden.append(watched.page.evaluate(HIDDEN))
    assert [found for found in hidden if found] == []


def test_tab_begins_at_the_page_that_replaced_the_former(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/jobs")
    watched.settle()
    watched.page.get_by_role("link", name="smoke").press("Enter")
    watched.page.wait_for_url("**/jobs/0*")
    watched.settle()
    watched.page.keyboard.press("Tab")
    expect(watched.page.get_by_role("button", name="Resume")).to_be_focused()


def test_a_stop_for_a_resize_shows_what_follows(theatre: Theatre, visit: Visit) -> None:
    job = theatre.scenes.tale
    watched = visit("/jobs")
    watched.settle()

    def stopping(route: Route) -> None:
        answer = route.fetch()
        body: dict[str, Any] = answer.json()
        layout = {"dp_replicate": 1, "dp_shard": 3, "cp": 1, "tp": 1, "pp": 1}
        pending = {"cause": "resize", "actor": "ada", "overrides": {}, "layout": layout}
        route.fulfill(response=answer, json=body | {"state": "stopping", "pending": pending})

    watched.page.route(f"**/api/v1/jobs/{job}", stopping)
    watched.page.goto(f"{theatre.url}/jobs/{job}")
    facts = watched.page.get_by_label("About the job")
    expect(facts).to_contain_text("then resumes on 3 slots")
    left = watched.page.get_by_text("Time left").locator("xpath=..")
    expect(left).not_to_contain_text(re.compile(r"\d"))  # the attempt ends now
