"""The queue page: long lists, a changed priority, a forecast, and the holders of slots."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.control_plane import wait_for
from tests.web.actors import open_context
from tests.web.browser import Watched
from tests.web.conftest import MOTION, Theme, Visit
from tests.web.crowd import NODES, QUEUED, SLOTS, gather
from tests.web.theatre import Served, Theatre, served

ROW = "tr[data-job]"
ROWS_AT_ONCE = 80
"""More rows than a window shows, and fewer than a page of the list has."""


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with 200 nodes and 5,000 waiting jobs."""
    folder = tmp_path_factory.mktemp("crowd")
    context = open_context(folder)
    gather(context)
    with served(context, folder) as server:
        yield server


@pytest.fixture
def faults() -> Iterator[list[str]]:
    """The errors of a page; none may occur."""
    found: list[str] = []
    yield found
    assert found == []


def open_queue(
    browser: Browser,
    crowd: Served,
    faults: list[str],
    *,
    width: int = 1280,
    theme: Theme = "light",
    path: str = "/queue",
) -> Watched:
    """Open the page of the crowd."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion=MOTION
    )
    crowd.log_in(context.request)
    watched = Watched(context.new_page(), faults=faults)
    watched.page.goto(crowd.url + path)
    watched.settle()
    return watched


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_thousands_wait(
    browser: Browser, crowd: Served, faults: list[str], width: int, theme: Theme
) -> None:
    watched = open_queue(browser, crowd, faults, width=width, theme=theme)
    page = watched.page
    expect(page.locator(".page-header")).to_contain_text(f"{QUEUED:,} jobs wait")
    expect(page.locator(".queue-held h2")).to_contain_text(f"of {NODES * SLOTS:,} slots held")
    expect(page.locator(ROW).first).to_contain_text("wider")
    assert page.locator(ROW).count() < ROWS_AT_ONCE
    watched.keep(f"queue-crowd-{theme}-{width}")
    assert watched.overflow() == 0
    assert watched.nameless() == []


def test_the_whole_queue_comes_page_by_page_in_order(
    browser: Browser, crowd: Served, faults: list[str]
) -> None:
    watched = open_queue(browser, crowd, faults)
    page = watched.page
    seen: dict[int, str] = {}

    def is_far() -> bool:
        seen.update(shown(page))
        page.mouse.wheel(0, 3_000)
        return max(seen) > 600

    wait_for(is_far, "position beyond 600", every=0.3)
    with crowd.api() as api:
        token, listed = "", list[str]()
        while len(listed) < 800:
            query = {"page_size": 200} | ({"page_token": token} if token else {})
            answer = api.get("/queue", params=query).json()
            listed += [entry["job_id"] for entry in answer["items"]]
            token = answer["next_page_token"]
    assert all(listed[position - 1] == job for position, job in seen.items() if position <= 800)


def test_a_priority_is_changed_in_its_row(
    browser: Browser, crowd: Served, faults: list[str]
) -> None:
    watched = open_queue(browser, crowd, faults)
    page = watched.page
    job = shown(page)[3]
    row = page.locator(f'tr[data-job="{job}"]')
    row.get_by_role("button", name="high").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Priority").fill("77")
    dialog.get_by_role("button", name="Change").click()
    expect(dialog).to_have_count(0)
    expect(row.locator(".queue-position")).to_have_text("1")
    expect(row.locator(".queue-priority")).to_have_text("77")


def test_a_forecast_for_a_spec_and_for_that_of_a_job(
    browser: Browser, crowd: Served, faults: list[str]
) -> None:
    watched = open_queue(browser, crowd, faults)
    page = watched.page
    page.get_by_role("button", name="When would a job start?").click()
    dialog = page.get_by_role("dialog")
    area = dialog.locator("textarea")
    expect(area).to_have_value('[resources]\nworld_size = 4\npriority = "high"\n')
    area.fill("[resources]\nworld_size = 4\npriority = -90")
    dialog.get_by_role("button", name="Forecast").click()
    expect(dialog.get_by_role("status")).to_contain_text(f"position {QUEUED + 1:,}")
    watched.keep("queue-what-if-1280")
    area.fill("[resources]\nworld_size = 0")
    dialog.get_by_role("button", name="Forecast").click()
    expect(dialog.get_by_role("alert")).to_contain_text("resources.world_size")
    watched.forgive("422")
    area.fill("{")
    expect(dialog.get_by_role("button", name="Forecast")).to_be_disabled()
    dialog.get_by_role("combobox").fill("wide-0001")
    dialog.get_by_role("option").filter(has_text="wide-0001").click()
    expect(area).to_have_value(re.compile("world_size = 64"))
    page.reload()
    expect(area).to_have_value(re.compile("world_size = 64"))


def test_a_queue_in_which_no_job_waits(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/queue")
    page = watched.page
    watched.settle()
    row = page.locator(f'tr[data-job="{theatre.scenes.waiting}"]')
    expect(row).to_be_visible()
    page.route(
        "**/api/v1/queue?*",
        lambda route: route.fulfill(json={"items": [], "next_page_token": None}),
    )
    expect(page.get_by_role("heading", name="No job waits")).to_be_visible()
    watched.keep("queue-empty-1360")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_row_has_its_project_its_duration_and_whom_it_overtakes(
    browser: Browser, crowd: Served, faults: list[str], width: int
) -> None:
    with crowd.api() as api:
        queue = api.get("/queue").json()
        projects = api.get("/projects").json()
    projects["items"].append(projects["items"][0] | {"name": "llama"})
    queue["items"][1] |= {
        "project": "llama",
        "lasts_seconds": 5400,
        "expected_start_at": "2020-01-01T00:00:00Z",
        "unknown_because": None,
        "backfilled_before": "wider-0000",
    }
    context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion=MOTION)
    crowd.log_in(context.request)
    watched = Watched(context.new_page(), faults=faults)
    page = watched.page
    page.route("**/api/v1/queue?*", lambda route: route.fulfill(json=queue))
    page.route("**/api/v1/projects?*", lambda route: route.fulfill(json=projects))
    page.goto(crowd.url + "/queue")
    watched.settle()
    row = page.locator(ROW).nth(1)
    expect(row.locator(".queue-start")).to_have_text("nowahead of wider-0000")
    expect(row.locator(".queue-lasts")).to_have_text("1 h 30 min")
    expect(row.locator(".queue-project")).to_have_text("llama")
    assert row.locator(".queue-project").is_visible() == (width > 640)
    watched.keep(f"queue-backfill-{width}")
    assert watched.overflow() == 0


def shown(page: Page) -> dict[int, str]:
    """Return the ids of the rendered rows, by position."""
    rows: list[tuple[str, str]] = page.evaluate(
        """() => [...document.querySelectorAll('tr[data-job]')]
          .map(row => [row.querySelector('.queue-position').textContent, row.dataset.job])"""
    )
    return {int(position.replace(",", "")): job for position, job in rows}
