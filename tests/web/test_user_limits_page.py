"""Limits of the users of a project, in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.web.conftest import Enter
from tests.web.people import Group
from tests.web.teams import teamed
from tests.web.test_members import COMMAND, row


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A server with two projects and a person in each role."""
    with teamed(tmp_path_factory.mktemp("teams")) as serving:
        yield serving


def test_a_maintainer_limits_users(enter: Enter) -> None:
    watched = enter("max", "/projects/vision")
    page = watched.page
    dialog, everyone = page.get_by_role("dialog"), row(page, "Everyone").locator(".member-use")
    expect(everyone).to_have_text("no limits")
    page.get_by_role("button", name="Limits of each user").click()
    dialog.get_by_label("Most slots").fill("eight")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.locator(".field-error")).to_contain_text("valid integer")
    expect(everyone).to_have_text("no limits")  # refused, and not read as "no limit"
    dialog.get_by_label("Most slots").fill("8")
    command = "$ trainyard members limits --max-slots 8 --project vision"
    expect(dialog.locator(COMMAND)).to_have_text(command)
    dialog.get_by_role("button", name="Save").click()
    expect(everyone).to_have_text("at most 8 slots each")
    use = row(page, "mel").locator(".member-use")
    expect(use).to_have_text(re.compile(r"\d of 8 slots, \d jobs?$"))
    page.get_by_role("button", name="Change role and limits of mel").click()
    dialog.get_by_label("Most running jobs").fill("4")
    command = "$ trainyard members add mel member --max-running 4 --project vision"
    expect(dialog.locator(COMMAND)).to_have_text(command)
    dialog.get_by_role("button", name="Save").click()
    expect(use).to_have_text(re.compile(r"\d of 8 slots, \d of 4 jobsown limit$"))
    page.get_by_role("button", name="Limits of each user").click()
    dialog.get_by_label("Most slots").fill("")
    dialog.get_by_role("button", name="Save").click()
    expect(everyone).to_have_text("no limits")
    watched.forgive("422")
