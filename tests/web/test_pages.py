"""Every page with realistic and extreme data: checked in each theme and width, with pictures."""

from __future__ import annotations

import itertools

from playwright.sync_api import Page, ViewportSize, expect

from tests.web.browser import Watched
from tests.web.conftest import Theme, Visit
from tests.web.theatre import Theatre

NARROW: ViewportSize = {"width": 390, "height": 844}
WIDE: ViewportSize = {"width": 1360, "height": 900}
THEMES: tuple[Theme, ...] = ("light", "dark")
PAGES = {
    "jobs": "/jobs",
    "submit": "/jobs/new",
    "submit-again": "/jobs/new?from={tale}",
    "submit-text": "/jobs/new?from={tale}&view=toml",
    "compare": "/compare?jobs={tale},{stopped},{done}&smooth=0.6",
    "compare-nothing": "/compare",
    "compare-early": "/compare?jobs={fresh},{waiting}",
    "nodes": "/nodes",
    "node-of-source": "/nodes/{supply.node}",
    "sources": "/sources",
    "sources-request": "/sources?request={supply.check}",
    "projects": "/projects",
    "queue": "/queue",
    "queue-what-if": "/queue?what-if=1",
    "goodput-all": "/goodput?days=7",
    "missing": "/nothing/here",
    "charts": "/jobs/{tale}",
    "charts-log": "/jobs/{tale}?y=log&more=1",
    "zoom": "/jobs/{tale}?from=2100&to=2600",
    "logs": "/jobs/{tale}?tab=logs&attempt=3&line=150001&q=NCCL",
    "attempts": "/jobs/{tale}?tab=attempts&attempt=3",
    "checkpoints": "/jobs/{tale}?tab=checkpoints",
    "events": "/jobs/{tale}?tab=events",
    "goodput": "/jobs/{tale}?tab=goodput",
    "ranks": "/jobs/{tale}?tab=ranks",
    "ranks-none": "/jobs/{oom}?tab=ranks",
    "provenance": "/jobs/{tale}?tab=provenance",
    "spec": "/jobs/{tale}?tab=spec",
    "resize": "/jobs/{tale}?do=resize",
    "cancel": "/jobs/{tale}?do=cancel",
    "stop": "/jobs/{tale}?do=stop",
    "delete": "/jobs/{done}?do=delete",
    "resume": "/jobs/{stopped}?do=resume",
    "failed": "/jobs/{oom}",
    "traceback": "/jobs/{oom}?tab=attempts",
    "remedy": "/jobs/{oom}?do=resume&aim=memory",
    "retrying": "/jobs/{retrying}",
    "waiting": "/jobs/{waiting}",
    "starting": "/jobs/{fresh}",
    "starting-logs": "/jobs/{fresh}?tab=logs",
    "succeeded": "/jobs/{done}",
    "branch": "/jobs/{stopped}?do=resume&checkpoint={stopped}.a1.step-100",
}


def test_every_page_is_whole(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/jobs", **NARROW)
    for name, path in PAGES.items():
        watched.page.set_viewport_size(NARROW)
        watched.page.goto(theatre.url + path.format_map(vars(theatre.scenes)))
        check_looks(watched, name)


def test_login_and_tokens_fit_a_narrow_window(
    theatre: Theatre, visit: Visit, live: Watched
) -> None:
    live.page.set_viewport_size(NARROW)
    live.page.goto(f"{theatre.url}/login")
    live.settle()
    live.keep("login-390")
    assert live.overflow() == 0
    live.forgive("401")
    watched = visit("/tokens", admin=True, **NARROW)
    watched.settle()
    watched.keep("tokens-390")
    assert watched.overflow() == 0
    watched.page.get_by_role("button", name="New token").click()
    expect(watched.page.get_by_role("dialog")).to_be_visible()
    watched.keep("tokens-new-390")
    assert watched.overflow() == 0
    watched.page.get_by_label("Permissions").select_option("Only these")
    watched.keep("tokens-scopes-390")
    assert watched.overflow() == 0
    assert watched.nameless() == []


def test_dialogs_of_a_checkpoint_fit_a_narrow_window(theatre: Theatre, visit: Visit) -> None:
    watched = visit(f"/jobs/{theatre.scenes.tale}?tab=checkpoints", **NARROW)
    watched.settle()
    dialog = watched.page.get_by_role("dialog")
    for verb in ("Fork", "Verify", "Export", "Unpin", "Delete", "Resume from"):
        watched.page.get_by_role("button", name=f"{verb} step 5200 of attempt 9").click()
        expect(dialog).to_be_visible()
        watched.settle()
        watched.keep(f"checkpoint-{verb.split()[0].lower()}-390")
        assert watched.overflow() == 0, verb
        assert watched.nameless() == [], verb
        watched.page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)


def check_looks(watched: Watched, name: str) -> None:
    """Check a page in each theme and width, and keep its pictures."""
    for size in (NARROW, WIDE):
        watched.page.set_viewport_size(size)
        for theme in THEMES:
            watched.page.emulate_media(color_scheme=theme)
            watched.settle()
            watched.keep(f"{name}-{theme}-{size['width']}")
            assert watched.overflow() == 0, (name, size, theme)
        assert watched.nameless() == [], (name, size)
        assert skips(headings(watched.page)) == [], (name, size)


def headings(page: Page) -> list[int]:
    """Return the levels of the visible headings, in order."""
    levels: list[int] = page.evaluate(
        """() => [...document.querySelectorAll('main :is(h1, h2, h3, h4, h5, h6)')]
          .filter(element => element.checkVisibility())
          .map(element => Number(element.tagName[1]))"""
    )
    return levels


def skips(levels: list[int]) -> list[tuple[int, int]]:
    """Return skipped levels of headings, and a second heading of the top level."""
    return [(a, b) for a, b in itertools.pairwise(levels) if b > a + 1 or b == 1]
