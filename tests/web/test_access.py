"""Logging in and out, tokens and nodes in a browser."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import expect

from tests.web.browser import Watched
from tests.web.conftest import Visit
from tests.web.theatre import Theatre
from trainyard.protocol.rest.access import Permission


def test_a_visitor_logs_in_where_they_wanted_to_go(theatre: Theatre, live: Watched) -> None:
    page = live.page
    page.goto(f"{theatre.url}/jobs?state=failed")
    page.get_by_label("Token").fill("ty_api_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown, expired or revoked")
    page.get_by_label("Token").fill(theatre.token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/jobs?state=failed")
    expect(page.locator("tr[data-job]").first).to_be_visible()
    assert page.get_by_role("link", name="Tokens").count() == 0  # only the admin makes tokens
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login?next=*")
    page.goto(f"{theatre.url}/nodes")
    page.wait_for_url("**/login?next=*")
    live.forgive("401")


def test_the_theme_that_was_chosen_stays(theatre: Theatre, visit: Visit) -> None:
    page = visit("/nodes", theme="light").page
    ground = "getComputedStyle(document.body).backgroundColor"
    toggle = page.get_by_role("button", name="Theme")
    expect(toggle).to_be_visible()
    light = page.evaluate(ground)
    toggle.click()
    assert page.evaluate(ground) == light
    toggle.click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    expect(toggle).to_be_visible()
    assert page.evaluate(ground) == dark


def test_a_token_is_made_used_and_revoked(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/tokens", admin=True)
    page = watched.page
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("admin")
    dialog.get_by_role("button", name="Create token").click()
    expect(dialog.locator(".field-error")).to_contain_text("reserved")
    dialog.get_by_label("Name").fill("ci-runner")
    dialog.get_by_role("button", name="Create token").click()
    shown = dialog.locator(".command-text")
    expect(shown).to_contain_text("TRAINYARD_TOKEN=")
    secret = found(r"TRAINYARD_TOKEN=(\S+)", shown.inner_text())
    headers = {"authorization": f"Bearer {secret}"}
    jobs = f"{theatre.url}/api/v1/jobs"
    assert httpx.get(jobs, headers=headers, timeout=30).status_code == 200
    dialog.get_by_role("button", name="Done").click()
    row = page.get_by_role("row", name="ci-runner")
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_have_count(0)
    assert secret not in page.content()
    assert httpx.get(jobs, headers=headers, timeout=30).status_code == 401
    watched.forgive("422")


def test_a_token_is_made_with_scopes(theatre: Theatre, visit: Visit) -> None:
    watched = visit("/tokens", admin=True)
    page = watched.page
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("reader")
    assert dialog.get_by_role("checkbox").count() == 0
    dialog.get_by_label("Permissions").select_option("Only these")
    assert dialog.get_by_role("checkbox").count() == len(Permission)
    dialog.get_by_role("button", name="Create token").click()
    expect(dialog.locator(".field-error")).to_contain_text("at least 1")
    dialog.get_by_label("nodes:read").check()
    dialog.get_by_label("jobs:read").check()
    dialog.get_by_role("button", name="Create token").click()
    shown = dialog.locator(".command-text")
    secret = found(r"TRAINYARD_TOKEN=(\S+)", shown.inner_text())
    headers = {"authorization": f"Bearer {secret}"}
    jobs = f"{theatre.url}/api/v1/jobs"
    assert httpx.get(jobs, headers=headers, timeout=30).status_code == 200
    assert httpx.post(jobs, headers=headers, json={}, timeout=30).status_code == 403
    dialog.get_by_role("button", name="Done").click()
    row = page.get_by_role("row", name="reader")
    expect(row.get_by_text("jobs:read nodes:read")).to_be_visible()
    watched.forgive("422")


def test_a_login_link_works_once(theatre: Theatre, visit: Visit, live: Watched) -> None:
    page = visit("/tokens", admin=True).page
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("for-a-colleague")
    dialog.get_by_label("Kind").select_option("login")
    dialog.get_by_role("button", name="Create token").click()
    link = found(r"(http\S+)", dialog.locator(".command-text").inner_text())
    live.page.goto(link)
    live.page.wait_for_url("**/jobs")
    live.page.get_by_role("button", name="Log out").click()
    live.page.wait_for_url("**/login*")
    live.page.goto(link)
    expect(live.page.get_by_role("alert")).to_contain_text("used up")
    live.forgive("401")


def test_a_dialog_with_a_form_begins_at_its_first_field(theatre: Theatre, visit: Visit) -> None:
    page = visit("/tokens", admin=True).page
    page.get_by_role("button", name="New token").click()
    expect(page.get_by_role("dialog").get_by_role("textbox").first).to_be_focused()
    page.goto(f"{page.url.removesuffix('/tokens')}/jobs/{theatre.scenes.stopped}")
    page.locator(".job-head").get_by_role("button", name="Fork", exact=True).click()
    expect(page.get_by_role("dialog").locator(":is(input, select):focus")).to_have_count(1)


def test_a_node_is_drained_and_taken_back(theatre: Theatre, visit: Visit) -> None:
    page = visit("/nodes").page
    node = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name="gpu-01"))
    expect(node.get_by_text("NVIDIA H200")).to_be_visible()
    assert node.locator(".slot").count() == 4
    for verb, state in (("Drain", "draining"), ("Undrain", "online")):
        button = node.get_by_role("button", name=verb, exact=True)
        button.focus()
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog")
        same = f"$ trainyard nodes {verb.lower()} gpu-01"
        expect(dialog.locator(".command-text")).to_have_text(same)
        if verb == "Drain":
            dialog.get_by_text("Let them finish").click()
            expect(dialog.locator(".command-text")).to_have_text(f"{same} --finish")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(button).to_be_focused()
        page.keyboard.press("Enter")
        page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
        expect(node.get_by_text(state)).to_be_visible()


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match, text
    return match[1]
