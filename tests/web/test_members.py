"""Members of a project in a browser: roles, service accounts, transfers, and disabled buttons."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.web.conftest import Enter
from tests.web.people import Group
from tests.web.teams import teamed
from tests.web.test_pages import check_looks

COMMAND = ".command-text"
ROW = "tr[data-job]"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A server with two projects and a person in each role."""
    with teamed(tmp_path_factory.mktemp("teams")) as serving:
        yield serving


def row(page: Page, name: str) -> Locator:
    """Return the row of a member or a service account."""
    return page.locator(".members tr").filter(has=page.locator(".member-name", has_text=name))


def barred(button: Locator) -> str:
    """Return why a button is disabled."""
    expect(button).to_be_disabled()
    return button.get_attribute("title") or ""


def test_a_maintainer_adds_changes_and_removes_a_member(group: Group, enter: Enter) -> None:
    group.join("ned")
    page = enter("max", "/projects").page
    page.get_by_role("link", name="vision", exact=True).click()
    page.wait_for_url("**/projects/vision")
    expect(page.get_by_text("Your role: maintainer, by membership")).to_be_visible()
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Add a member").click()
    dialog.get_by_label("User").fill("ned")
    assert dialog.locator("option[value]:not(select *)").count() == 0  # only an admin lists users
    dialog.get_by_label("Role").select_option("viewer")
    command = "$ trainyard members add ned viewer --project vision"
    expect(dialog.locator(COMMAND)).to_have_text(command)
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(row(page, "ned").locator(".member-role")).to_have_text("viewer")

    ned = enter("ned", f"/jobs/{group.jobs['resnet']}")
    stop = ned.page.get_by_role("button", name="Stop", exact=True)
    assert barred(stop) == "needs the role member in vision"

    page.get_by_role("button", name="Change role and limits of ned").click()
    dialog.get_by_label("Role").select_option("member")
    dialog.get_by_role("button", name="Save").click()
    expect(row(page, "ned").locator(".member-role")).to_have_text("member")
    expect(stop).to_be_enabled()  # in the other browser, without a reload

    page.get_by_role("button", name="Remove ned").click()
    command = "$ trainyard members remove ned --project vision"
    expect(dialog.locator(COMMAND)).to_have_text(command)
    expect(dialog).to_contain_text("ned no longer sees the project and its jobs")
    dialog.get_by_role("button", name="Remove", exact=True).click()
    expect(row(page, "ned")).to_have_count(0)
    expect(ned.page.get_by_role("heading", name="You are in no project yet")).to_be_visible()

    with group.admin() as admin:
        path = "/projects/speech/members/ned"
        admin.put(path, json={"role": "viewer"}).raise_for_status()
    expect(ned.page.get_by_role("alert")).to_contain_text("no job has the id")
    ned.page.get_by_role("link", name="All jobs").click()
    expect(ned.page.locator(ROW)).to_have_count(0)
    ned.forgive("403")
    ned.forgive("404")


def test_an_admin_picks_a_known_user(group: Group, enter: Enter) -> None:
    page = enter("root", "/projects/vision").page
    expect(page.get_by_text("Your role: maintainer, as an admin")).to_be_visible()
    page.get_by_role("button", name="Add a member").click()
    names = page.get_by_role("dialog").locator("datalist option")
    expect(names.first).to_be_attached()
    found = names.evaluate_all("options => options.map(option => option.value)")
    assert {"nora", "otto", "root"} <= set(found)
    assert not {"admin", "nightly@vision", "vera"} & set(found)


def test_the_role_of_everyone_reaches_people_without_a_project(group: Group, enter: Enter) -> None:
    watched = enter("nora", "/jobs")
    nora = watched.page
    expect(nora.get_by_role("heading", name="You are in no project yet")).to_be_visible()
    expect(nora.get_by_role("main")).to_contain_text("A maintainer of a project can add you")
    page = enter("root", "/projects/speech").page
    page.get_by_role("button", name="Change the role of everyone").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Role").select_option("viewer")
    command = "$ trainyard members everyone viewer --project speech"
    expect(dialog.locator(COMMAND)).to_have_text(command)
    dialog.get_by_role("button", name="Save").click()
    expect(row(page, "Everyone").locator(".member-role")).to_have_text("viewer")
    expect(
        nora.get_by_role("heading", name="You have no jobs in the projects you see")
    ).to_be_visible()
    expect(nora.get_by_role("main")).to_contain_text("A maintainer of a project can add you")
    assert barred(nora.get_by_role("button", name="New job")).startswith("needs the role member")
    nora.get_by_role("button", name="Show the jobs of everyone").click()
    expect(nora.locator(ROW)).to_have_count(2)
    with group.admin() as admin:
        admin.put("/projects/speech/everyone", json={"role": None}).raise_for_status()
    expect(nora.get_by_role("heading", name="You are in no project yet")).to_be_visible()
    watched.forgive("403")


def test_a_service_account_gets_a_token(group: Group, enter: Enter) -> None:
    watched = enter("max", "/projects/vision")
    page = watched.page
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="New service account").click()
    dialog.get_by_label("Name").fill("Sweep")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.locator(".field-error")).to_contain_text("lower-case letters")
    dialog.get_by_label("Name").fill("sweep")
    dialog.get_by_label("Role").select_option("viewer")
    command = "$ trainyard service-accounts create sweep --project vision --role viewer"
    expect(dialog.locator(COMMAND)).to_have_text(command)
    dialog.get_by_role("button", name="Create").click()
    expect(row(page, "sweep").locator(".member-role")).to_have_text("viewer")
    page.get_by_role("button", name="Tokens of sweep@vision").click()
    expect(dialog.get_by_text("None. A program uses a token")).to_be_visible()
    dialog.get_by_role("button", name="New token").click()
    dialog.get_by_label("Name").fill("ci")
    dialog.get_by_label("Valid for").select_option("90 days")
    dialog.get_by_label("Permissions").select_option("Only these")
    boxes = dialog.get_by_role("checkbox")
    expect(boxes).to_have_count(4)  # those of a viewer
    dialog.get_by_label("jobs:read").check()
    command = (
        "$ trainyard service-accounts token sweep@vision ci --project vision --scope jobs:read"
    )
    expect(dialog.locator(COMMAND)).to_have_text(f"{command} --days 90")
    dialog.get_by_role("button", name="Create token").click()
    expect(dialog.get_by_role("heading")).to_have_text("Token ci")
    shown = dialog.locator(COMMAND).inner_text()
    secret = re.search(r"TRAINYARD_TOKEN=(\S+)", shown)
    assert secret, shown
    headers = {"authorization": f"Bearer {secret[1]}"}
    jobs = httpx.get(f"{group.url}/api/v1/jobs", headers=headers, timeout=30).json()["items"]
    assert {job["project"] for job in jobs} == {"vision"}
    dialog.get_by_role("button", name="Done").click()
    assert secret[1] not in page.content()
    expect(dialog.get_by_role("row", name="ci")).to_contain_text("jobs:read")
    dialog.get_by_role("button", name="Close").last.click()
    page.get_by_role("button", name="Delete sweep@vision").click()
    command = "$ trainyard service-accounts remove sweep@vision --project vision"
    expect(dialog.locator(COMMAND)).to_have_text(command)
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(row(page, "sweep")).to_have_count(0)
    watched.forgive("422")


def test_a_maintainer_revokes_a_token_of_a_service_account(group: Group, enter: Enter) -> None:
    with group.admin() as admin:
        path = "/projects/vision/service-accounts/nightly@vision/tokens"
        made = admin.post(path, json={"name": "leaked"}).raise_for_status().json()
    headers = {"authorization": f"Bearer {made['secret']}"}
    jobs = f"{group.url}/api/v1/jobs"
    assert httpx.get(jobs, headers=headers, timeout=30).status_code == 200
    page = enter("max", "/projects/vision").page
    page.get_by_role("button", name="Tokens of nightly@vision").click()
    tokens = page.get_by_role("dialog", name="Tokens of nightly@vision")
    tokens.get_by_role("button", name="Revoke leaked").click()
    dialog = page.get_by_role("dialog", name="Revoke leaked?")
    command = "$ trainyard service-accounts revoke nightly@vision leaked --project vision"
    expect(dialog.locator(COMMAND)).to_have_text(command)
    dialog.get_by_role("button", name="Revoke", exact=True).click()
    expect(tokens.get_by_role("row", name="leaked")).to_have_count(0)
    expect(tokens.get_by_role("row", name="ci")).to_be_visible()
    assert httpx.get(jobs, headers=headers, timeout=30).status_code == 401


@pytest.mark.parametrize("name", ["vera", "mel"])
def test_others_read_who_the_members_are(enter: Enter, name: str) -> None:
    page = enter(name, "/projects/vision").page
    for member, role in (("vera", "viewer"), ("mel", "member"), ("max", "maintainer")):
        expect(row(page, member).locator(".member-role")).to_have_text(role)
    expect(row(page, "nightly")).to_be_visible()
    assert page.locator(".member-actions button").count() == 0
    needs = "needs the role maintainer in vision"
    for button in ("Add a member", "New service account"):
        assert barred(page.get_by_role("button", name=button)) == needs
    expect(page.get_by_text("A maintainer of the project changes the members.")).to_be_visible()


def test_an_operator_without_a_role_sees_no_members(enter: Enter) -> None:
    page = enter("otto", "/projects/vision").page
    expect(page.get_by_text("You have no role in this project")).to_be_visible()
    expect(page.get_by_role("heading", name="vision")).to_be_visible()
    assert page.get_by_role("table").count() == 0


def test_a_hidden_project_does_not_exist(enter: Enter) -> None:
    watched = enter("mel", "/projects/speech")
    expect(watched.page.get_by_role("alert")).to_contain_text("no project has the name 'speech'")
    expect(watched.page.get_by_role("link", name="All projects")).to_be_visible()
    watched.forgive("404")


MAY = {
    "vera": {"Transfer": "maintainer", "Delete": "maintainer", "Stop": "member", "Fork": "member"},
    "mel": {"Transfer": "maintainer", "Delete": "maintainer"},
    "max": {},
    "root": {},
}
"""The least role in the project of each button that a person may not use."""


@pytest.mark.parametrize("name", MAY)
def test_buttons_of_a_job_are_disabled_with_the_reason(
    group: Group, enter: Enter, name: str
) -> None:
    page = enter(name, f"/jobs/{group.jobs['resnet']}?tab=checkpoints").page
    facts = page.get_by_role("list", name="About the job")
    expect(facts).to_contain_text("owner mel")
    needs = MAY[name]
    head = page.locator(".job-header")
    least = {
        "Stop": "Stop", "Cancel": "Stop", "Resize": "Stop", "Save now": "Stop", "Profile": "Stop",
        "Fork": "Fork", "priority normal": "Stop", "Transfer": "Transfer",
    }  # fmt: skip
    for label, kind in least.items():
        button = head.get_by_role("button", name=label, exact=True)
        expect(button).to_be_visible()
        _check(button, needs.get(kind))
    first = page.locator(".checkpoints tbody tr").first
    for label in ("Resume", "Fork", "Verify", "Export", "Pin"):
        _check(first.get_by_text(label, exact=True), needs.get("Stop"))
    _check(first.get_by_text("Delete", exact=True), needs.get("Delete"))
    note = page.get_by_text("You can only read this job. A change needs the role member in vision.")
    assert note.count() == (name == "vera")


def _check(button: Locator, least: str | None) -> None:
    if least is None:
        expect(button).to_be_enabled()
    else:
        assert barred(button) == f"needs the role {least} in vision"


def test_a_link_to_a_forbidden_action_shows_the_reason(group: Group, enter: Enter) -> None:
    page = enter("vera", f"/jobs/{group.jobs['resnet']}?do=stop").page
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("status")).to_have_text("This needs the role member in vision.")
    expect(dialog.get_by_role("button", name="Stop", exact=True)).to_be_disabled()
    page.goto(f"{group.url}/jobs/{group.jobs['resnet']}?tab=checkpoints&fork=newest")
    expect(page.locator(".checkpoints")).to_be_visible()
    assert dialog.count() == 0


CLUSTER = {
    "mel": {"Drain": "operator", "Change default": "operator", "New project": "admin"},
    "otto": {"New project": "admin"},
    "root": {},
}


@pytest.mark.parametrize("name", CLUSTER)
def test_buttons_of_the_cluster_are_disabled_with_the_reason(enter: Enter, name: str) -> None:
    needs = CLUSTER[name]
    watched = enter(name, "/nodes")
    page = watched.page

    def check(button: str, least: str | None) -> None:
        found = page.get_by_role("button", name=button, exact=True).first
        expect(found).to_be_visible()
        if least is None:
            expect(found).to_be_enabled()
        else:
            assert barred(found) == f"needs the role {least}"

    check("Drain", needs.get("Drain"))
    check("Add a node", needs.get("New project"))
    page.get_by_role("link", name="Sources").click()
    check("Add a source", needs.get("New project"))
    page.get_by_role("link", name="Projects").click()
    check("New project", needs.get("New project"))
    check("Change vision", needs.get("Change default"))
    check("Delete vision", needs.get("New project"))


def test_jobs_of_other_projects_are_plain_text(group: Group, enter: Enter) -> None:
    watched = enter("mel", "/queue")
    page = watched.page
    rows = page.get_by_role("table", name="Waiting jobs").locator("tbody tr")
    expect(rows).to_have_count(2)
    hidden = rows.filter(has=page.get_by_text("another project's job", exact=True))
    expect(hidden).to_have_count(1)
    assert hidden.get_by_role("link").count() == hidden.get_by_role("button").count() == 0
    held = page.locator(".queue-holders")
    expect(held.get_by_role("link", name="resnet")).to_be_visible()
    expect(held.get_by_text("another project's job")).to_be_visible()
    change = page.get_by_role("button", name="normal")
    expect(change).to_be_enabled()
    page.get_by_role("link", name="Nodes").first.click()
    jobs = page.locator(".slots-jobs")
    expect(jobs.get_by_text("another project's job")).to_be_visible()
    assert "whisper" not in page.content()


def test_a_viewer_of_the_queue_changes_no_priority(enter: Enter) -> None:
    page = enter("vera", "/queue").page
    button = page.get_by_role("button", name="normal")
    assert barred(button) == "needs the role member in vision"
    button.click(force=True)  # as a touch screen, which shows no titles
    reason = page.get_by_role("dialog")
    expect(reason).to_have_text("This needs the role member in vision.")
    page.keyboard.press("Escape")
    expect(reason).to_have_count(0)


def test_a_maintainer_transfers_a_job(group: Group, enter: Enter) -> None:
    job = group.jobs["resnet-next"]
    own = enter("max", "/jobs").page
    own.wait_for_url("**/jobs?owner=max")
    expect(
        own.get_by_role("heading", name="You have no jobs in the projects you see")
    ).to_be_visible()
    watched = enter("max", f"/jobs/{job}")
    page = watched.page
    page.get_by_role("button", name="Transfer").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("New owner")).to_be_focused()
    names = dialog.locator("datalist option")
    expect(names).to_have_count(2)  # max and the service account; mel is the owner, vera a viewer
    dialog.get_by_label("New owner").fill("vera")
    dialog.get_by_role("button", name="Transfer").click()
    expect(dialog.locator(".field-error")).to_contain_text("may submit jobs in project 'vision'")
    dialog.get_by_label("New owner").fill("max")
    expect(dialog.locator(COMMAND)).to_contain_text(f"""/jobs/{job}/owner\"""")
    dialog.get_by_role("button", name="Transfer").click()
    expect(page.get_by_role("list", name="About the job")).to_contain_text("owner max")
    expect(own.locator(f'{ROW}[data-job="{job}"]')).to_be_visible()  # without a reload
    watched.forgive("422")


def test_the_form_begins_in_a_project_that_the_person_may_use(enter: Enter) -> None:
    watched = enter("mel", "/jobs/new?view=toml")
    page = watched.page
    spec = page.get_by_role("textbox", name="Spec")
    expect(spec).to_have_value(re.compile('project = "vision"'))
    submit = page.get_by_role("button", name="Submit job")
    expect(submit).to_be_enabled()
    spec.fill("")
    assert barred(submit) == "needs the role member in default"
    watched.settle()
    watched.forgive("422")


def test_the_pages_of_members_are_whole(group: Group, enter: Enter) -> None:
    job = f"/jobs/{group.jobs['resnet']}"
    pages = {
        "project": ("max", "/projects/vision", None),
        "project-viewer": ("vera", "/projects/vision", None),
        "project-add": ("max", "/projects/vision", "Add a member"),
        "project-change": ("max", "/projects/vision", "Change role and limits of mel"),
        "project-leave": ("max", "/projects/vision", "Leave the project"),
        "project-limits": ("max", "/projects/vision", "Limits of each user"),
        "project-everyone": ("max", "/projects/vision", "Change the role of everyone"),
        "project-account": ("max", "/projects/vision", "New service account"),
        "project-tokens": ("max", "/projects/vision", "Tokens of nightly@vision"),
        "project-no-accounts": ("root", "/projects/speech", None),
        "projects-viewer": ("vera", "/projects", None),
        "job-viewer": ("vera", job, None),
        "job-viewer-checkpoints": ("vera", f"{job}?tab=checkpoints", None),
        "job-viewer-stop": ("vera", f"{job}?do=stop", None),
        "job-maintainer": ("max", job, None),
        "job-transfer": ("max", job, "Transfer"),
        "queue-of-others": ("mel", "/queue", None),
        "nodes-of-others": ("mel", "/nodes", None),
        "jobs-none": ("nora", "/jobs", None),
        "jobs-none-own": ("vera", "/jobs", None),
        "users-with-account": ("root", "/users", None),
    }
    for name, (user, path, button) in pages.items():
        watched = enter(user, path)
        watched.settle()
        if button is not None:
            watched.page.get_by_role("button", name=button, exact=True).click()
        check_looks(watched, name)
