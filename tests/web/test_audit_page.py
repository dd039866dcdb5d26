"""The page of the audit log: rows of changes and refusals, its filter, and who may open it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from sqlalchemy import select

from server.core.audit.audit_tables import audit_log
from server.core.audit.chain import seal
from server.core.audit.signed_digests import sign_chain
from server.core.context import Context
from tests.e2e.control_plane import wait_for
from tests.web.actors import open_context
from tests.web.conftest import Enter
from tests.web.people import Group
from tests.web.test_pages import check_looks
from tests.web.theatre import served
from trainyard.protocol.audit_log.views import AuditOutcome

COMMAND = ".command-text"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A server with an admin, a user, a refused attempt and numbered rows."""
    folder = tmp_path_factory.mktemp("audit")
    context = open_context(folder)
    with context.database.write() as connection:
        assert sign_chain(context, connection)
    with served(context, folder) as server:
        group = Group(server.url, server.token, server.admin_token)
        group.join("root", role="admin")
        group.join("ada")
        with group.admin() as admin:
            admin.post("/projects", json={"name": "vision"}).raise_for_status()
            member = "/projects/vision/members/ada"
            for role in ("viewer", "member"):
                admin.put(member, json={"role": role}).raise_for_status()
        with group.member("ada") as ada:
            assert ada.patch("/projects/vision", json={"weight": 9}).status_code == 403
        wait_for(lambda: _has_refused(context), "the row of the refused attempt")
        yield group


def _has_refused(context: Context) -> bool:
    """Number the rows that wait, as the leading scheduler does each second."""
    list(seal(context))
    refused = select(audit_log.c.seq).where(audit_log.c.outcome == AuditOutcome.REFUSED)
    with context.database.read() as connection:
        return connection.scalar(refused) is not None


def test_an_admin_reads_and_filters_the_log(group: Group, enter: Enter) -> None:
    del group
    watched = enter("root", "/audit")
    page, dialog = watched.page, watched.page.get_by_role("dialog")
    rows = page.get_by_role("table", name="Audit log").locator("tbody tr")
    changed = rows.filter(has_text="role: viewer → member")
    expect(changed).to_contain_text("projects/vision/members/ada")
    expect(changed).to_contain_text("admin token")
    check_looks(watched, "audit")
    page.get_by_role("button", name="refused").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("refused 403")
    page.get_by_label("User").fill("ada")
    command = "$ trainyard audit --user ada --outcome refused"
    expect(page.locator(COMMAND)).to_have_text(command)
    expect(rows).to_contain_text("ada")
    page.get_by_role("button", name="Row").first.click()
    expect(dialog).to_contain_text("Request id")
    expect(dialog).to_contain_text("Digest before")
    check_looks(watched, "audit-row")
    page.keyboard.press("Escape")
    page.get_by_label("Object").fill("projects/none")
    expect(page.get_by_role("heading", name="No row matches")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    expect(changed).to_be_visible()


def test_a_user_without_the_permission_has_no_link_to_the_log(enter: Enter) -> None:
    watched = enter("ada", "/projects")
    expect(watched.page.get_by_role("link", name="Projects").first).to_be_visible()
    expect(watched.page.get_by_role("link", name="Audit")).to_have_count(0)
