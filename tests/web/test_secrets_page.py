"""Secrets of a project and own ones, in a browser: stored, named in specs, and never shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web.conftest import Enter
from tests.web.people import Group
from tests.web.teams import teamed
from tests.web.test_members import COMMAND, barred
from tests.web.test_pages import check_looks

VALUE = "hf_0123456789abcdef"
KEY = "-----BEGIN KEY-----\nMC4CAQAw\n-----END KEY-----"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A server with two projects and a person in each role."""
    with teamed(tmp_path_factory.mktemp("teams")) as serving:
        yield serving


def row(page: Page, name: str) -> Locator:
    """Return the row of a secret."""
    return page.locator(".secrets tr").filter(has=page.locator(".secret-name", has_text=name))


def test_a_maintainer_stores_a_secret_that_members_see_without_its_value(
    group: Group, enter: Enter
) -> None:
    del group
    watched, others = enter("max", "/projects/vision"), enter("mel", "/projects/vision")
    page, dialog = watched.page, watched.page.get_by_role("dialog")
    mel = others.page
    assert barred(mel.get_by_role("button", name="New secret")).startswith("needs the role main")
    page.get_by_role("button", name="New secret").click()
    dialog.get_by_label("Name").fill("not a name")
    dialog.get_by_label("Value").fill(f"{VALUE}\n")
    check_looks(watched, "secret-new")
    dialog.get_by_role("button", name="Store").click()
    expect(dialog.locator(".field-error")).to_contain_text("legal: letters, digits")
    dialog.get_by_label("Name").fill("hf")
    command = "$ trainyard secrets set hf --project vision < FILE"
    expect(dialog.locator(COMMAND)).to_have_text(command)
    dialog.get_by_role("button", name="Store").click()
    expect(dialog.locator(COMMAND)).to_have_text('VARIABLE = {secret = "hf"}')
    dialog.get_by_role("button", name="Close", exact=True).last.click()
    expect(row(page, "hf").locator(".secret-version")).to_have_text("1")
    expect(row(mel, "hf")).to_contain_text("by max")  # without a reload
    expect(mel.get_by_role("button", name="Delete hf")).to_have_count(0)
    for each in (page, mel):
        assert VALUE not in each.content()

    page.get_by_role("button", name="New value of hf").click()
    dialog.get_by_label("Value").fill(KEY)
    dialog.get_by_role("button", name="Store").click()
    expect(row(page, "hf").locator(".secret-version")).to_have_text("2 of 2 kept versions")
    check_looks(watched, "secrets-of-project")
    page.get_by_role("button", name="Delete hf").click()
    expect(dialog).to_contain_text("start no more")
    dialog.get_by_role("button", name="Delete").click()
    expect(row(page, "hf")).to_have_count(0)
    expect(row(mel, "hf")).to_have_count(0)
    watched.forgive("422")


def test_a_short_own_secret_is_stored_with_a_warning(enter: Enter) -> None:
    watched = enter("mel", "/profile")
    page, dialog = watched.page, watched.page.get_by_role("dialog")
    page.get_by_role("button", name="New secret").click()
    dialog.get_by_label("Name").fill("pin")
    dialog.get_by_label("Value").fill("1234")
    dialog.get_by_role("button", name="Show the value").click()
    expect(dialog.get_by_role("button", name="Hide the value")).to_be_visible()
    dialog.get_by_role("button", name="Store").click()
    expect(dialog.get_by_role("alert")).to_contain_text("show this value unmasked")
    expect(dialog.locator(COMMAND)).to_have_text('VARIABLE = {secret = "pin", of = "owner"}')
    check_looks(watched, "secret-stored")
    dialog.get_by_role("button", name="Close", exact=True).last.click()
    expect(row(page, "pin")).to_contain_text("by mel")
    check_looks(watched, "profile-secrets")


def test_a_viewer_sees_no_secrets(enter: Enter) -> None:
    page = enter("vera", "/projects/vision").page
    expect(page.get_by_role("heading", name="Members")).to_be_visible()
    expect(page.get_by_role("heading", name="Secrets")).to_have_count(0)
