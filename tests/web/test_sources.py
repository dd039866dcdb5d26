"""The page of sources: states, requests with their reasons, findings, and admin actions."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, ViewportSize, expect

from tests.web import supply
from tests.web.conftest import Visit
from tests.web.theatre import Theatre

WIDE: ViewportSize = {"width": 1280, "height": 900}
NARROW: ViewportSize = {"width": 390, "height": 844}

STARTS = """text => [...text.querySelectorAll('.command-line')].map(line => {
  const words = document.createRange();
  words.selectNodeContents(line.lastChild);
  const [first] = words.getClientRects();
  return { left: Math.round(first.left), below: first.top - line.getBoundingClientRect().top };
})"""
"""Where the words of each line of a command begin: also a long one next to its indentation."""


def card(page: Page, name: str) -> Locator:
    """Return the card of a source."""
    return page.get_by_role("region", name=name, exact=True)


def request_of(page: Page, request_id: str) -> Locator:
    """Return a request in the list of its source."""
    return page.locator(f"[data-request='{request_id}']")


def test_the_state_of_a_source_names_what_is_to_be_done(visit: Visit) -> None:
    page = visit("/sources").page
    gate = card(page, supply.GATE)
    expect(gate.locator(".badge").first).to_have_text("needs login")
    expect(gate).to_contain_text("the master connection has expired")
    expect(gate.locator(".command-text")).to_have_text(supply.LOGIN)
    expect(gate.get_by_role("button", name="Copy")).to_be_visible()
    cloud = card(page, supply.CLOUD)
    expect(cloud.locator(".badge").first).to_have_text("paused")
    expect(cloud).to_contain_text(f"by server: the engine refuses: {supply.REFUSAL}")
    away = card(page, supply.AWAY)
    expect(away.locator(".badge").first).to_have_text("offline")
    expect(away).to_contain_text("its provisioner does not answer")
    expect(card(page, supply.SLURM).locator(".badge").first).to_have_text("online")
    # Only an admin gives orders.
    orders = page.get_by_role("button", name=re.compile("Pause|Check|Delete|Add|^Cancel")).all()
    assert len(orders) > 3
    for order in orders:
        expect(order).to_be_disabled()
        assert order.get_attribute("title") == "the token ada lacks " + (
            "tokens:admin" if order.inner_text().startswith("Add") else "sources:write"
        )


def test_a_request_shows_the_reason_of_the_engine(theatre: Theatre, visit: Visit) -> None:
    scenes = theatre.scenes.supply
    page = visit("/sources").page
    pending = request_of(page, scenes.pending)
    expect(pending.locator(".badge")).to_have_text("pending")
    expect(pending).to_contain_text("2 nodes for llama-70b")
    expect(pending).to_contain_text("expected to start")
    expect(pending).to_contain_text(supply.WHY)
    forgotten = request_of(page, scenes.forgotten)
    expect(forgotten).to_contain_text("The engine does not describe job 99127")
    check = request_of(page, scenes.check)
    for finding in supply.FINDINGS:
        found = check.get_by_role("listitem").filter(has_text=finding.name)
        expect(found).to_contain_text(("✓ " if finding.passed else "✗ ") + finding.name)
        expect(found).to_contain_text(finding.detail)
    # Open requests come first, whatever their age.
    states = card(page, supply.SLURM).locator(".source-request-head .badge").all_inner_texts()
    assert states == ["pending", "running", "running", "ended", "ended"]


def test_a_node_a_request_and_a_waiting_job_lead_to_each_other(
    theatre: Theatre, visit: Visit
) -> None:
    scenes = theatre.scenes.supply
    page = visit(f"/nodes/{scenes.node}").page
    page.get_by_role("link", name=f"request {scenes.running}").click()
    page.wait_for_url(f"**/sources?request={scenes.running}")
    chosen = request_of(page, scenes.running)
    expect(chosen).to_have_attribute("aria-current", "true")
    expect(chosen).to_be_in_viewport()
    chosen.get_by_role("link", name=scenes.node).click()
    page.wait_for_url(f"**/nodes/{scenes.node}")
    page.goto(f"{theatre.url}/jobs/{theatre.scenes.waiting}")
    wanted = page.get_by_role("link", name=f"2 nodes of {supply.SLURM}")
    expect(wanted.locator("..")).to_contain_text(supply.WHY)
    wanted.click()
    page.wait_for_url(f"**/sources?request={scenes.pending}")
    expect(request_of(page, scenes.pending)).to_be_in_viewport()


def test_an_admin_pauses_requests_checks_and_deletes(visit: Visit) -> None:
    watched = visit("/sources", admin=True, **WIDE)
    page, dialog = watched.page, watched.page.get_by_role("dialog")
    away = card(page, supply.AWAY)

    def order(verb: str, label: str, command: str, *, name: str) -> None:
        away.get_by_role("button", name=verb, exact=True).click()
        expect(dialog.locator(".command-text")).to_have_text(f"$ trainyard sources {command}")
        if name == "pause":
            dialog.get_by_label("Reason").fill("new driver")
        for width in (WIDE, NARROW):
            page.set_viewport_size(width)
            watched.keep(f"sources-{name}-{width['width']}")
            assert watched.overflow() == 0, name
            assert watched.nameless() == [], name
        page.set_viewport_size(WIDE)
        dialog.get_by_role("button", name=label, exact=True).click()

    order("Check", "Check", f"check {supply.AWAY}", name="check")
    expect(away.locator(".source-request-head .badge")).to_have_text("wanted")
    order("Pause", "Pause", f"pause {supply.AWAY}", name="pause")
    expect(away.get_by_role("button", name="Request nodes")).to_be_disabled()
    order("Unpause", "Unpause", f"unpause {supply.AWAY}", name="unpause")
    order("Request nodes", "Request", f"request {supply.AWAY} --nodes 1", name="request")
    expect(away.locator(".source-request-head .badge")).to_have_count(2)
    order("Delete", "Delete", f"delete {supply.AWAY}", name="delete")
    expect(dialog.get_by_role("alert")).to_contain_text("has 2 open requests; cancel them first")
    watched.forgive("409")
    watched.keep("sources-delete-refused-1280")
    page.keyboard.press("Escape")


def test_a_request_is_explained_cancelled_and_ended(theatre: Theatre, visit: Visit) -> None:
    scenes = theatre.scenes.supply
    watched = visit("/sources", admin=True, **NARROW)
    page, dialog = watched.page, watched.page.get_by_role("dialog")
    for verb, request_id in (("Explain", scenes.pending), ("End", scenes.forgotten)):
        page.get_by_role("button", name=f"{verb} request {request_id}").click()
        same = f"$ trainyard sources {verb.lower()} {request_id}"
        expect(dialog.locator(".command-text")).to_have_text(same)
        watched.keep(f"sources-{verb.lower()}-390")
        assert watched.overflow() == 0, verb
        assert watched.nameless() == [], verb
        dialog.get_by_role("button", name=f"{verb} request").click()
        expect(dialog).to_have_count(0)
    expect(request_of(page, scenes.forgotten).locator(".badge")).to_have_text("ended")
    page.get_by_role("button", name=f"Cancel request {scenes.running}").click()
    dialog.get_by_role("button", name="Cancel request").click()
    expect(request_of(page, scenes.running).locator(".badge")).to_have_text("leaving")


@pytest.mark.parametrize(
    ("what", "program"),
    [("node", "python -m worker"), ("source", "python -m provisioner --config sources.toml")],
)
def test_what_joins_gets_a_token_once(visit: Visit, what: str, program: str) -> None:
    watched = visit(f"/{what}s", admin=True, **NARROW)
    page, dialog = watched.page, watched.page.get_by_role("dialog")
    page.get_by_role("button", name=f"Add a {what}", exact=True).click()
    watched.keep(f"{what}s-add-390")
    dialog.get_by_role("button", name="Create a join token").click()
    command = dialog.locator(".command-text")
    expect(command).to_contain_text(program)
    expect(command).to_contain_text("TRAINYARD_JOIN_TOKEN=ty_join_")
    starts = command.evaluate(STARTS)
    assert len(starts) == 4
    assert len({start["left"] for start in starts}) == 1
    assert all(start["below"] < 10 for start in starts), starts
    expect(dialog.get_by_role("heading")).to_be_focused()
    watched.keep(f"{what}s-token-390")
    assert watched.overflow() == 0
    assert watched.nameless() == []
    dialog.get_by_role("button", name="Done").click()
    expect(page.get_by_role("button", name=f"Add a {what}", exact=True)).to_be_focused()
    assert "ty_join_" not in page.content()


def test_enter_creates_the_token_of_a_node_by_its_name(theatre: Theatre, visit: Visit) -> None:
    page = visit("/nodes", admin=True, **NARROW).page
    page.get_by_role("button", name="Add a node", exact=True).click()
    page.get_by_label("What the token is for").fill("rack-7")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").locator(".command-text")).to_contain_text("ty_join_")
    page.goto(f"{theatre.url}/tokens")
    expect(page.get_by_role("row", name="rack-7")).to_contain_text("join")
