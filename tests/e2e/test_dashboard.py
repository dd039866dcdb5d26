"""The main path in a browser: submit with the form, watch, stop, resume on 3 slots, continue."""

from __future__ import annotations

import re
import subprocess

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.control_plane import ControlPlane, wait_for
from tests.web.browser import Watched
from trainyard.client.sdk import Client

pytestmark = pytest.mark.timeout(400)
LOSS = "train/loss"
ENDLESS = "100000"
FIELDS = {
    "name": "by-browser",
    "data-path": "data:text.txt",
    "training-steps": ENDLESS,
    "lr_schedule-warmup_steps": "1",
    "resources-world_size": "2",
}


def test_a_job_is_submitted_watched_and_resumed_on_three_slots(
    plane: ControlPlane, yard: Client, live: Watched
) -> None:
    page = live.page
    log_in(page, login_link(plane))
    submit(page)
    live.forgive("422")  # a slow browser requests plans of incomplete drafts
    live.keep("live-starting")
    page.evaluate("window.isFirstLoad = true")

    see_points_arrive(live)
    live.keep("live-first-attempt")
    step = stop(page, yard)
    resume_on_three(live)
    see_second_attempt(live, after=step)
    live.keep("live-second-attempt")
    cancel(page)
    assert page.evaluate("window.isFirstLoad") is True  # all of it without reloading


def login_link(plane: ControlPlane) -> str:
    """Return the link of another `up`; the link of the first one expires after minutes."""
    told = subprocess.check_output(plane.command("up"), env=plane.environment, text=True)
    link = re.search(r"\S+/login\?code=\S+", told)
    assert link, told
    return link[0]


def log_in(page: Page, link: str) -> None:
    page.goto(link)
    page.wait_for_url("**/jobs")
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()


def submit(page: Page) -> None:
    """Fill the form in, see the plan, and submit."""
    page.get_by_role("link", name="New job").first.click()
    page.locator("#field-data-source").select_option("text")
    for field, value in FIELDS.items():
        page.locator(f"#field-{field}").fill(value)
    plan = page.get_by_role("complementary", name="Plan")
    expect(plan.get_by_role("heading", name="FSDP 2")).to_be_visible()
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url("**/jobs/*")
    expect(page.get_by_role("heading", name=FIELDS["name"])).to_be_visible()


def see_points_arrive(live: Watched) -> None:
    """Check that new points arrive and that the line grows, without any input."""
    expect(live.page.locator(".job-title .state")).to_have_attribute("data-state", "running")
    wait_for(lambda: live.points(LOSS) >= 5, "points in the chart")
    painted = wait_for(lambda: live.painted(LOSS), "a painted line")
    assert painted > 50
    first = live.points(LOSS)
    wait_for(lambda: live.points(LOSS) > first + 5, "more points")
    assert live.painted(LOSS) > 50


def stop(page: Page, yard: Client) -> int:
    """Stop with the button, and return the job's step."""
    page.get_by_role("button", name="Stop", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text(f"trainyard stop {FIELDS['name']}")).to_be_visible()
    dialog.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".job-title .state")).to_have_attribute("data-state", "stopped")
    step = next(yard.jobs(name=FIELDS["name"])).progress.step
    bar = page.get_by_role("progressbar", name="Steps")
    expect(bar).to_have_attribute("aria-valuenow", str(step))  # read after the state is shown
    return step


def resume_on_three(live: Watched) -> None:
    """Choose 3 slots, check changed and unchanged values, and launch."""
    page = live.page
    page.get_by_role("button", name="Resume", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.locator('input[data-world-size="3"]').first.check()
    changes = dialog.get_by_role("region", name="Changes")
    same = dialog.get_by_role("region", name="Stays the same")
    expect(changes).to_contain_text("FSDP 2 → FSDP 3")
    for kept in ("global batch size", "data position", "end of the schedule"):
        expect(same).to_contain_text(kept)
    command = f"trainyard resume {FIELDS['name']} --world-size 3"
    expect(dialog.locator(".command-text")).to_contain_text(command)
    live.keep("live-resume")
    dialog.get_by_role("button", name="Resume on 3 slots").click()
    expect(dialog).to_have_count(0)


def see_second_attempt(live: Watched, *, after: int) -> None:
    """Check that attempt 2 continues from the same step with new points and the badge."""
    page = live.page
    about = page.get_by_role("list", name="About the job")
    expect(about).to_contain_text("attempt 2")
    expect(about).to_contain_text("FSDP 3")
    badge = page.locator(".job-title .continuity")
    expect(badge).to_have_text("continuous")
    last = live.figure(LOSS)
    wait_for(lambda: int(last.get_attribute("data-last-step") or 0) > after + 3, "later steps")
    assert live.points(LOSS) > after
    assert live.painted(LOSS) > 50
    badge.click()
    expect(page.get_by_role("dialog", name="Continuity")).to_contain_text(
        f"Continues where step {after:,} of attempt 1 stood"
    )
    page.keyboard.press("Escape")


def cancel(page: Page) -> None:
    """Cancel, after the dialog has named the steps that would be lost."""
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("would be lost")
    dialog.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".job-title .state")).to_have_attribute("data-state", "cancelled")
