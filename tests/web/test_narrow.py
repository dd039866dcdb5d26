"""What a phone shows: nothing is cut, squeezed or out of reach, and numbers have names."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.web.conftest import Visit
from tests.web.test_pages import NARROW
from tests.web.theatre import Theatre

LINE_PX = 24
"""More than one line of text is high, and less than two."""


def height(locator: Locator) -> float:
    """Return how many pixels high an element is that is seen."""
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
