"""A login through a real issuer on another site, and the approval of a command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from embedded.child import any_free_port
from tests.e2e.control_plane import LOOPBACK
from tests.server.api.sso.issuers import SCOPES, SECRET, TestIssuer, running_issuer
from tests.web.actors import open_context
from tests.web.browser import Watched
from tests.web.conftest import MOTION
from tests.web.test_pages import NARROW, THEMES, WIDE, check_looks
from tests.web.theatre import Served, served


@dataclass(frozen=True)
class Site:
    """A server with single sign-on. The issuer is another site for the browser: it has another
    host."""

    url: str
    issuer: TestIssuer
    served: Served


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("sso")
    port = any_free_port(LOOPBACK)
    url = f"http://localhost:{port}"
    secret = Path(folder, "client.secret")
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    with running_issuer(url) as issuer:
        issuer.put("ada", preferred_username="ada", groups=["vision"])
        settings = {
            "PUBLIC_URL": url,
            "OIDC_ISSUER": issuer.url,
            "OIDC_CLIENT_ID": "trainyard",
            "OIDC_CLIENT_SECRET_FILE": str(secret),
            "OIDC_SCOPES": SCOPES,
            "OIDC_SIGN_UP": "anyone",
            "OIDC_NAME": "Example ID",
        }
        with served(open_context(folder), folder, port=port, settings=settings) as server:
            yield Site(url, issuer, server)


def test_a_person_logs_in_through_the_issuer_and_approves_a_device(
    site: Site, browser: Browser
) -> None:
    faults: list[str] = []
    device = httpx.post(f"{site.url}/api/v1/auth/device", json={"host": "login-1"}).json()
    with browser.new_context(viewport=WIDE, reduced_motion=MOTION) as context:
        watched = Watched(context.new_page(), faults=faults)
        page = watched.page
        page.goto(device["verification_uri_complete"])
        page.get_by_role("link", name="Log in with Example ID").click()
        page.wait_for_url(f"{site.issuer.url}/interaction/*")
        page.get_by_role("link", name="ada").click()
        page.wait_for_url(f"{site.url}/device")
        expect(page.get_by_label("Code")).to_have_value(device["user_code"])
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_text("login-1")).to_be_visible()
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_role("heading", name="The device is logged in")).to_be_visible()
        body = {"device_code": device["device_code"]}
        token = httpx.post(f"{site.url}/api/v1/auth/device/token", json=body)
        assert token.status_code == 201, token.text
        assert token.json()["user"] == "ada"
        page.goto(f"{site.url}/profile")
        expect(page.get_by_text("by single sign-on")).to_be_visible()
        expect(page.get_by_text(f"linked with {site.issuer.url}")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(f"{site.issuer.url}/session/end?*")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url(f"{site.url}/login*")
        expect(page.get_by_role("link", name="Log in with Example ID")).to_be_visible()
        watched.forgive("401")
    assert faults == []


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_login_page_fits_and_names_the_fault(
    site: Site, browser: Browser, theme: str, size: dict[str, int]
) -> None:
    with browser.new_context(viewport=size, color_scheme=theme, reduced_motion=MOTION) as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(f"{site.url}/login?error=issuer_down&next=/queue")
        expect(page.get_by_role("alert")).to_contain_text("The issuer does not respond")
        button = page.get_by_role("link", name="Log in with Example ID")
        expect(button).to_have_attribute("href", "/api/v1/auth/oidc/login?next=%2Fqueue")
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0
        page.goto(f"{site.url}/login?error=%3Cb%3E&next=//evil.example.com")
        expect(page.get_by_role("alert")).to_have_text("The login failed. Log in again.")
        expect(button).to_have_attribute("href", "/api/v1/auth/oidc/login?next=%2Fjobs")


def test_a_group_gets_a_role_and_an_admin_unlinks_a_person(site: Site, browser: Browser) -> None:
    faults: list[str] = []
    with (
        browser.new_context(viewport=WIDE, reduced_motion=MOTION) as context,
        browser.new_context(viewport=WIDE, reduced_motion=MOTION) as others,
    ):
        person = others.new_page()
        person.goto(f"{site.url}/login?next=/projects/default")
        person.get_by_role("link", name="Log in with Example ID").click()
        person.get_by_role("link", name="ada").click()
        person.wait_for_url(f"{site.url}/projects/default")
        watched = Watched(context.new_page(), faults=faults)
        page, dialog = watched.page, watched.page.get_by_role("dialog")
        # The cookie is one of the host in the address.
        login = {"token": site.served.admin_token}
        api = f"{site.url}/api/v1/auth/session"
        assert context.request.post(api, data=login, headers={"origin": site.url}).ok
        page.goto(f"{site.url}/projects/default")
        expect(page.get_by_role("heading", name="Groups of Example ID")).to_be_visible()
        page.get_by_role("button", name="Add a group").click()
        dialog.get_by_label("Group").fill("vision")
        dialog.get_by_label("Role").select_option("maintainer")
        command = "$ trainyard groups set vision maintainer --project default"
        expect(dialog.locator(".command-text")).to_have_text(command)
        check_looks(watched, "sso-group")
        dialog.get_by_role("button", name="Add", exact=True).click()
        group = page.get_by_role("table", name="Groups").get_by_role("row", name="vision")
        expect(group.locator(".member-role")).to_have_text("maintainer")
        check_looks(watched, "sso-groups")
        expect(person.get_by_text("Your role: maintainer, by a group")).to_be_visible()
        page.get_by_role("button", name="Change the role of vision").click()
        dialog.get_by_label("Role").select_option("none")
        expect(dialog).to_contain_text("The group gives no role here.")
        dialog.get_by_role("button", name="Save").click()
        expect(group).to_have_count(0)
        page.goto(f"{site.url}/users")
        row = page.get_by_role("row").filter(has_text="ada")
        expect(row).to_contain_text("by single sign-on")
        check_looks(watched, "sso-users")
        page.get_by_role("button", name="Unlink ada").click()
        expect(dialog.locator(".command-text")).to_have_text("$ trainyard users unlink ada")
        dialog.get_by_role("button", name="Unlink").click()
        expect(row).to_contain_text("no password")
        expect(page.get_by_role("button", name="Unlink ada")).to_have_count(0)
        person.wait_for_url(f"{site.url}/login*")
    assert faults == []
