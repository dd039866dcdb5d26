"""The nodes of a cluster of two hundred, and one of them, in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web import cluster
from tests.web.actors import open_context
from tests.web.browser import Watched
from tests.web.conftest import Theme, Visit
from tests.web.test_pages import headings, skips
from tests.web.theatre import Served, served

THEMES: tuple[Theme, ...] = ("light", "dark")
MAX_IN_VIEW = 24
"""Cards in or near a window of 1280 x 900."""


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An API over the nodes of the cluster, instead of the scenes of jobs."""
    folder = tmp_path_factory.mktemp("cluster")
    context = open_context(folder)
    cluster.play(context)
    with served(context, folder) as server:
        yield server


def test_only_nodes_in_view_are_asked_for_their_history(visit: Visit) -> None:
    watched = visit("/login", width=1280)
    page = watched.page
    histories: list[str] = []
    page.on(
        "request", lambda asked: histories.append(asked.url) if _is_history(asked.url) else None
    )
    page.goto(page.url.replace("/login", "/nodes"))
    expect(page.locator(".node .line-chart").first).to_be_visible()
    # Once the stream is open, earlier data is read again.
    expect(page.locator(".connection")).to_have_text("Live")
    watched.settle()
    watched.rest()
    assert page.locator(".node").count() == cluster.NODES
    at_first = set(histories)
    assert 0 < len(at_first) <= MAX_IN_VIEW
    histories.clear()
    page.keyboard.press("End")
    expect(card(page, cluster.LONG_NAME).locator(".line-chart")).to_be_visible()
    watched.settle()
    # Cards that the window scrolls past may be requested too, but never all.
    assert len(at_first) + len(histories) <= 3 * MAX_IN_VIEW < cluster.NODES
    assert len({*at_first, *histories}) == len(at_first) + len(histories)


def _is_history(url: str) -> bool:
    return re.search(r"/nodes/[^/]+/metrics", url) is not None


def card(page: Page, name: str) -> Locator:
    """Return the card of a node."""
    heading = page.get_by_role("heading", name=name, exact=True)
    return page.get_by_role("listitem").filter(has=heading)


@pytest.mark.parametrize(
    ("node", "state", "problem"),
    [
        (cluster.BROKEN, "cordoned", "slot 0: Xid 79, the GPU has fallen off the bus"),
        (cluster.CORDONED, "cordoned", "new power supply, ticket OPS-4417"),
        (cluster.HELD, "online", "process 48213 (python) of grace holds its memory"),
        (cluster.LEAVING, "draining", "spot instance, ends at 12:00 UTC"),
        (cluster.SICK, "online", "a reset is needed to replace a damaged row"),
        (cluster.SLOW, "online", "slowed 2 jobs"),
        (cluster.OFFLINE[0], "offline", "No heartbeat from its worker"),
        (cluster.DRAINED[0], "draining", "Drained by ada"),
    ],
)
def test_what_is_wrong_with_a_node_is_seen(
    visit: Visit, node: str, state: str, problem: str
) -> None:
    watched = visit(f"/nodes?q={node}&problems=1")
    found = card(watched.page, node)
    expect(found.locator(".badge")).to_contain_text(state)
    assert watched.page.locator(".node").count() == 1
    expect(found.get_by_role("list", name="Problems")).to_contain_text(problem)


def test_nodes_are_filtered(visit: Visit) -> None:
    watched = visit("/nodes", width=1280)
    page = watched.page
    cards = page.locator(".node")
    expect(cards).to_have_count(cluster.NODES)
    box = page.get_by_role("searchbox")
    box.press_sequentially("rack=r03 H100")
    expect(cards).to_have_count(8)
    page.wait_for_url("**/nodes?q=rack*")
    box.fill("")  # immediately, while the page still renders the earlier text
    expect(cards).to_have_count(cluster.NODES)
    page.get_by_role("button", name="with problems 10").click()
    expect(cards).to_have_count(10)
    box.fill("no such node")
    expect(page.get_by_text("No node matches")).to_be_visible()
    page.reload()
    expect(page.get_by_text("No node matches")).to_be_visible()


def test_a_node_has_a_page_with_charts(visit: Visit) -> None:
    watched = visit("/nodes", width=1280)
    page = watched.page
    page.get_by_role("link", name=cluster.BROKEN, exact=True).click()
    page.wait_for_url(f"**/nodes/{cluster.BROKEN}")
    power = page.get_by_role("figure").filter(has_text="Power")
    # One line for each slot, divided where samples are missing.
    expect(power.locator(".line")).to_have_count(2 * cluster.SLOTS)
    page.get_by_label("Time").select_option(label="last 6 hours")
    page.wait_for_url("**?hours=6")
    expect(power.locator(".line")).to_have_count(2 * cluster.SLOTS)
    page.goto(page.url.replace(cluster.BROKEN, "nothing"))
    expect(page.get_by_text("No node has the name nothing")).to_be_visible()
    watched.forgive("404")


def test_a_node_is_cordoned_with_a_reason(visit: Visit) -> None:
    watched = visit(f"/nodes/{cluster.SLOW}", width=390, height=844)
    page, dialog = watched.page, watched.page.get_by_role("dialog")
    page.get_by_role("button", name="Drain", exact=True).click()
    assert dialog.get_by_label("Reason").count() == 0
    dialog.get_by_text("Let them finish").click()
    dialog.get_by_label("Reason").fill("noisy fan")
    same = f"$ trainyard nodes cordon {cluster.SLOW} --reason 'noisy fan'"
    expect(dialog.locator(".command-text")).to_have_text(same)
    look(watched, "node-cordon-390")
    dialog.get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_role("list", name="Problems")).to_contain_text("noisy fan")
    page.get_by_role("button", name="Uncordon").click()
    dialog.get_by_role("button", name="Uncordon").click()
    expect(page.locator(".node .badge")).to_contain_text("online")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_pages_are_whole(theatre: Served, visit: Visit, width: int) -> None:
    watched = visit("/nodes", width=width, height=900 if width > 600 else 844)
    for name, path in {
        "nodes-200": "/nodes",
        "nodes-last": f"/nodes?q={cluster.LONG_NAME[:7]}",
        "nodes-problems": "/nodes?problems=1",
        "node": f"/nodes/{cluster.BROKEN}",
        "node-day": f"/nodes/{cluster.HELD}?hours=24",
        "node-offline": f"/nodes/{cluster.OFFLINE[0]}",
    }.items():
        watched.page.goto(theatre.url + path)
        if name != "node-offline":
            expect(watched.page.locator(".line-chart").first).to_be_visible()
        for theme in THEMES:
            watched.page.emulate_media(color_scheme=theme)
            watched.settle()
            look(watched, f"{name}-{theme}-{width}")
        assert watched.nameless() == [], name
        assert headings(watched.page)[0] == 1, name
        assert skips(headings(watched.page)) == [], name


def look(watched: Watched, name: str) -> None:
    """Keep a picture, and assert that nothing is wider than the window."""
    watched.keep(name)
    assert watched.overflow() == 0, name
