"""Several people share a server: logins by password, invitations, profiles, users, owned jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from tests.web.conftest import Enter, Visit
from tests.web.people import BROWSERS, LONG_NAME, PASSWORD, Group, gathered
from tests.web.test_pages import check_looks

NEW_PASSWORD = "another horse battery"
ROW = "tr[data-job]"
COMMAND = ".command-text"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A server that several people share."""
    with gathered(tmp_path_factory.mktemp("group")) as serving:
        yield serving


def test_a_person_logs_in_by_name_and_password(group: Group, enter: Enter) -> None:
    watched = enter(None, "/nodes")
    page = watched.page
    expect(page.get_by_label("Name")).to_be_focused()
    expect(page.get_by_label("Name")).to_have_attribute("autocomplete", "username")
    password = page.get_by_label("Password", exact=True)
    expect(password).to_have_attribute("autocomplete", "current-password")
    page.get_by_label("Name").fill("ada")
    password.fill("wrong horse battery")
    password.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("name or password is wrong")
    page.get_by_role("button", name="Show the password").click()
    expect(password).to_have_attribute("type", "text")
    password.fill(PASSWORD)
    page.get_by_role("button", name="Log in", exact=True).click()
    page.wait_for_url("**/nodes")
    expect(page.get_by_role("link", name="ada", exact=True)).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login?next=*")
    page.get_by_role("button", name="Log in with a token").click()
    page.get_by_label("Token").fill(group.admin_token)
    page.get_by_role("button", name="Log in", exact=True).click()
    page.wait_for_url("**/nodes")
    watched.forgive("401")


def test_without_a_password_the_login_has_only_tokens(visit: Visit) -> None:
    page = visit("/login").page
    expect(page.get_by_label("Token")).to_be_focused()
    assert page.get_by_label("Name").count() == 0
    assert page.get_by_role("button", name="Log in with").count() == 0


def test_a_refusal_for_some_time_shows_the_seconds_to_wait(enter: Enter) -> None:
    watched = enter(None, "/login")
    page = watched.page
    problem = {
        "type": "/problems/too-many",
        "title": "Too many requests",
        "status": 429,
        "detail": "10 logins as 'ada' failed; try again in 3 seconds",
        "errors": [],
        "request_id": "",
    }
    page.route(
        "**/api/v1/auth/session",
        lambda route: route.fulfill(status=429, json=problem, headers={"retry-after": "3"}),
    )
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password", exact=True).fill("wrong")
    page.get_by_role("button", name="Log in", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text("10 logins as 'ada' failed.")
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"Try again in \d"))
    expect(page.get_by_role("timer")).to_have_text("Try again now.")
    watched.forgive("429")
    watched.forgive("401")


def test_an_invitation_becomes_a_user_with_a_password(group: Group, enter: Enter) -> None:
    admin = enter("root", "/users").page
    admin.get_by_role("button", name="Invite a user").click()
    dialog = admin.get_by_role("dialog")
    expect(dialog.get_by_label("Name")).to_be_focused()
    dialog.get_by_label("Name").fill("grace")
    dialog.get_by_label("E-mail").fill("grace@example.org")
    dialog.get_by_label("Role").select_option("operator")
    command = "$ trainyard users invite grace --email grace@example.org --role operator"
    expect(dialog.locator(COMMAND)).to_have_text(command)
    dialog.get_by_role("button", name="Invite", exact=True).click()
    expect(dialog.get_by_role("heading")).to_have_text("Link for grace")
    link = dialog.locator(COMMAND).inner_text()
    dialog.get_by_role("button", name="Done").click()
    row = admin.get_by_role("row", name="grace")
    expect(row.locator(".user-state")).to_contain_text("invited")
    assert link not in admin.content()

    watched = enter(None, link.removeprefix(group.url))
    page = watched.page
    expect(page.get_by_role("heading")).to_have_text("Welcome, grace")
    assert page.url == f"{group.url}/invitation"
    password = page.get_by_label("New password", exact=True)
    expect(password).to_have_attribute("autocomplete", "new-password")
    expect(page.get_by_label("User name")).to_have_value("grace")
    button = page.get_by_role("button", name="Set the password")
    password.fill("short")
    button.click()
    assert password.evaluate("input => input.validity.tooShort")
    password.fill(PASSWORD)
    button.click()
    page.wait_for_url("**/jobs?owner=grace")
    expect(page.get_by_role("link", name="grace", exact=True)).to_be_visible()
    page.goto(link)
    expect(page.get_by_role("heading")).to_have_text("This invitation is no longer valid")
    assert page.url == f"{group.url}/invitation"
    page.goto(f"{group.url}/profile")  # the refused code has not ended the session
    expect(page.get_by_role("heading", name="grace")).to_be_visible()
    admin.reload()
    expect(row.locator(".user-state")).to_have_text("active")
    watched.forgive("401")


def test_an_invitation_without_its_code_names_what_to_do(enter: Enter) -> None:
    page = enter(None, "/invitation").page
    expect(page.get_by_role("alert")).to_contain_text("Open the link of your invitation again")


def test_a_person_ends_sessions_and_changes_the_password(group: Group, enter: Enter) -> None:
    group.join("eve", email="eve@example.org")
    watched = enter("eve", "/profile")
    page = watched.page
    with ExitStack() as stack:
        phone, desk, lab = [
            stack.enter_context(group.member("eve", browser)) for browser in (*BROWSERS, "lab/1.0")
        ]
        page.reload()
        rows = page.get_by_role("table", name="Browser sessions").locator("tbody tr")
        expect(rows.filter(has_text="Chrome on Linux")).to_contain_text("this browser")
        rows.filter(has_text="Safari on iPhone").get_by_role("button").click()
        end = page.get_by_role("dialog").get_by_role("button", name="End", exact=True)
        end.click()
        expect(rows.filter(has_text="iPhone")).to_have_count(0)
        assert phone.get("/auth/session").status_code == 401
        assert desk.get("/auth/session").status_code == 200
        page.get_by_role("button", name="End all others").click()
        expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text(re.compile("End 3"))
        end.click()
        expect(rows).to_have_count(1)
        assert desk.get("/auth/session").status_code == 401
        assert lab.get("/auth/session").status_code == 401
    page.get_by_role("button", name="Change the password").click()
    dialog = page.get_by_role("dialog")
    present = dialog.get_by_label("Present password", exact=True)
    expect(present).to_be_focused()
    present.fill("wrong horse battery")
    wanted = dialog.get_by_label("New password", exact=True)
    wanted.fill(NEW_PASSWORD)
    wanted.press("Enter")
    expect(dialog.locator(".field-error")).to_have_text("This is not the present password.")
    present.fill(PASSWORD)
    wanted.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Changed.")).to_be_visible()
    expect(page.get_by_role("heading", name="eve")).to_be_visible()
    body = {"name": "eve", "password": NEW_PASSWORD}
    assert page.request.post(f"{group.url}/api/v1/auth/session", data=body).ok
    watched.forgive("401")


def test_a_person_manages_own_tokens_on_the_profile(group: Group, enter: Enter) -> None:
    page = enter("ada", "/profile").page
    table = page.get_by_role("table", name="Tokens")
    expect(table.get_by_role("row")).to_have_count(2)
    assert table.get_by_text("bob-laptop").count() == 0
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_label("Kind").count() == 0  # a user creates no tokens of machines
    dialog.get_by_label("Permissions").select_option("Only these")
    assert dialog.get_by_label("users:admin").count() == 0
    dialog.get_by_label("jobs:read").check()
    dialog.get_by_label("Name").fill("reader")
    dialog.get_by_role("button", name="Create token").click()
    dialog.get_by_role("button", name="Done").click()
    row = table.get_by_role("row", name="reader")
    row.get_by_role("button", name="Revoke").click()
    dialog.get_by_role("button", name="Revoke", exact=True).click()
    expect(row).to_have_count(0)


def test_an_admin_sees_own_tokens_or_all(enter: Enter) -> None:
    page = enter("root", "/tokens").page
    expect(page.get_by_role("heading", name="No token yet")).to_be_visible()
    page.get_by_role("button", name="all", exact=True).click()
    page.wait_for_url("**/tokens?all=1")
    expect(page.get_by_role("row", name="bob-laptop")).to_contain_text("bob")
    expect(page.get_by_role("row", name="node gpu-01")).to_be_visible()


def test_an_admin_changes_disables_and_enables_a_user(group: Group, enter: Enter) -> None:
    group.join("mallory")
    page = enter("root", "/users").page
    row = page.get_by_role("row", name="mallory")
    dialog = page.get_by_role("dialog")
    row.get_by_role("button", name="Change").click()
    dialog.get_by_label("Role").select_option("operator")
    expect(dialog.locator(COMMAND)).to_have_text("$ trainyard users role mallory operator")
    dialog.get_by_role("button", name="Save").click()
    expect(row.locator(".user-role")).to_have_text("operator")
    row.get_by_role("button", name="Change").click()
    dialog.get_by_label("Unix account").fill("mal")
    words = "$ trainyard users change mallory --unix-account mal"
    expect(dialog.locator(COMMAND)).to_have_text(words)
    dialog.get_by_role("button", name="Save").click()
    expect(row.locator(".user-name")).to_contain_text("Unix account mal")
    with group.member("mallory") as member:
        row.get_by_role("button", name="Disable").click()
        expect(dialog.get_by_role("listitem")).to_have_count(4)
        expect(dialog.locator(COMMAND)).to_have_text("$ trainyard users disable mallory")
        dialog.get_by_role("button", name="Disable").click()
        expect(row.locator(".user-state")).to_contain_text("disabled")
        assert member.get("/auth/session").status_code == 401
    row.get_by_role("button", name="Enable").click()
    dialog.get_by_role("button", name="Enable").click()
    expect(row.locator(".user-state")).to_have_text("active")
    row.get_by_role("button", name="Reset password").click()
    expect(dialog.locator(COMMAND)).to_have_text("$ trainyard users reset mallory")
    dialog.get_by_role("button", name="Make a link").click()
    expect(dialog.locator(COMMAND)).to_contain_text("/invitation#ty_invitation_")
    dialog.get_by_role("button", name="Done").click()
    expect(row.locator(".user-state")).to_contain_text("link for a new password")
    # Nothing ends the own access, or changes the built-in user.
    assert page.get_by_role("row", name="root").get_by_role("button", name="Disable").count() == 0
    built_in = page.get_by_role("row").filter(has=page.get_by_role("link", name="admin"))
    assert built_in.get_by_role("button").count() == 0


def test_problems_of_an_invitation_are_at_their_fields(enter: Enter) -> None:
    watched = enter("root", "/users")
    dialog = watched.page.get_by_role("dialog")
    watched.page.get_by_role("button", name="Invite a user").click()
    dialog.get_by_label("Name").fill("Grace Hopper")
    dialog.get_by_role("button", name="Invite", exact=True).click()
    expect(dialog.locator(".field-error")).to_contain_text("lower-case letters")
    assert dialog.get_by_role("alert").count() == 0
    dialog.get_by_label("Name").fill("ada")
    dialog.get_by_role("button", name="Invite", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("names are never given twice")
    watched.forgive("422")
    watched.forgive("409")


def test_only_an_admin_has_the_page_of_users(enter: Enter) -> None:
    watched = enter("ada", "/jobs")
    watched.settle()
    assert watched.page.get_by_role("link", name="Users").count() == 0
    watched.page.goto(watched.page.url.split("/jobs")[0] + "/users")
    expect(watched.page.get_by_role("alert")).to_contain_text("users:admin")
    watched.forgive("403")


def test_a_person_sees_own_jobs_first(group: Group, enter: Enter) -> None:
    watched = enter("ada", "/jobs")
    page = watched.page
    page.wait_for_url("**/jobs?owner=ada")
    watched.settle()
    expect(page.locator(ROW)).to_have_count(2)
    queued = page.get_by_role("button", name=re.compile("^queued"))
    expect(queued).to_have_text("queued2")
    expect(page.locator(COMMAND)).to_have_text("$ trainyard ps --mine")
    page.get_by_role("button", name="everyone").click()
    page.wait_for_url("**/jobs?owner=*")
    expect(page.locator(ROW)).to_have_count(5)
    expect(queued).to_have_text("queued5")
    expect(page.locator(COMMAND)).to_have_text("$ trainyard ps")
    of_bob = page.locator(f'tr[data-job="{group.jobs["of-bob-1"]}"]')
    of_bob.get_by_role("button", name="bob", exact=True).last.click()
    page.wait_for_url("**/jobs?owner=bob")
    expect(page.locator(ROW)).to_have_count(2)
    expect(page.locator(COMMAND)).to_have_text("$ trainyard ps --owner bob")
    of_bob.locator(".row-link").click()
    expect(page.get_by_label("About the job")).to_contain_text("owner bob")
    page.get_by_label("About the job").get_by_role("link", name="bob").click()
    page.wait_for_url("**/jobs?owner=bob")
    page.goto(f"{group.url}/jobs?state=queued")  # a link without an owner shows everyone's
    expect(page.locator(ROW)).to_have_count(5)


def test_jobs_of_others_stay_out_of_the_own_ones(group: Group, enter: Enter) -> None:
    group.join("uma")
    group.join("vic")
    page = enter("uma", "/jobs").page
    expect(
        page.get_by_role("heading", name="You have no jobs in the projects you see")
    ).to_be_visible()
    with group.member("vic") as vic, group.member("uma") as uma:
        made = [
            member.post("/jobs", json={"name": name, "tags": ["late"]}).raise_for_status().json()
            for member, name in ((vic, "of-vic"), (uma, "of-uma"))
        ]
        expect(page.locator(ROW)).to_have_count(1)
        expect(page.locator(ROW)).to_contain_text("of-uma")
        page.get_by_role("button", name="everyone").click()
        expect(page.locator(f'tr[data-job="{made[0]["id"]}"]')).to_be_visible()
        for member, job in ((vic, made[0]), (uma, made[1])):
            member.post(f"/jobs/{job['id']}/cancel", json={}).raise_for_status()
    with group.admin() as admin:
        for job in made:
            admin.delete(f"/jobs/{job['id']}").raise_for_status()


def test_the_built_in_user_sees_the_jobs_of_everyone(enter: Enter) -> None:
    page = enter("admin", "/jobs").page
    expect(page.locator(ROW)).to_have_count(5)
    expect(page.get_by_role("columnheader", name="Owner")).to_be_visible()
    assert page.url.endswith("/jobs")
    page.get_by_role("button", name="mine").click()
    expect(page.locator(ROW)).to_have_count(1)


def test_one_person_alone_sees_no_owner(visit: Visit) -> None:
    watched = visit("/jobs", admin=True)
    watched.settle()
    page = watched.page
    assert page.url.endswith("/jobs")
    assert page.get_by_role("columnheader", name="Owner").count() == 0
    assert page.get_by_role("button", name="mine").count() == 0
    page.locator(".row-link").first.click()
    expect(page.get_by_label("About the job")).not_to_contain_text("owner")


def test_the_pages_of_users_are_whole(group: Group, enter: Enter) -> None:
    code = group.invite("ivy")["code"]
    pages = {
        "login-password": (None, "/login", None),
        "invitation": (None, f"/invitation#{code}", None),
        "invitation-none": (None, "/invitation", None),
        "profile": ("ada", "/profile", None),
        "profile-password": ("ada", "/profile", "Change the password"),
        "users": ("root", "/users", None),
        "users-invite": ("root", "/users", "Invite a user"),
        "users-change": ("root", "/users", f"Change {LONG_NAME}"),
        "users-disable": ("root", "/users", "Disable bob"),
        "users-link": ("root", "/users", "Reset password of bob"),
        "jobs-of-everyone": ("ada", "/jobs?owner=*", None),
        "tokens-of-everyone": ("root", "/tokens?all=1", None),
    }
    for name, (user, path, button) in pages.items():
        watched = enter(user, path)
        watched.settle()
        if button is not None:
            watched.page.get_by_role("button", name=button, exact=True).click()
        check_looks(watched, name)
        watched.forgive("401")


def test_the_bar_fits_every_window(enter: Enter) -> None:
    watched = enter("root", "/nodes")
    profile = watched.page.get_by_role("link", name="root", exact=True)
    for width in (390, 700, 800, 960, 1100):
        watched.page.set_viewport_size({"width": width, "height": 800})
        watched.settle()
        assert watched.overflow() == 0, width
        expect(profile).to_be_in_viewport()
