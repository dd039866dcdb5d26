"""`users`, `whoami`, `login --user`, `ps --mine`: users from the command line."""

from __future__ import annotations

import json
import time

import httpx
import pytest

from tests.library.conftest import Run, Yard
from trainyard.cli.commands import local
from trainyard.client.errors import ApiError, ConnectionFailedError, TrainyardError
from trainyard.client.sdk import Client
from trainyard.client.settings import choose_profile, config_path
from trainyard.protocol.rest.access import TokenView
from trainyard.protocol.rest.common import ProblemDetails
from trainyard.protocol.user_accounts.device_flow import DeviceLogin

PASSWORD = "correct horse battery"


def accept(yard: Yard, code: str) -> None:
    """Set the password of an invited user, as the dashboard does."""
    with Client(yard.url) as client:
        body = {"code": code, "password": PASSWORD}
        client.transport.send("POST", "/auth/invitation", body=body)


def invited(run: Run, name: str, *options: str) -> str:
    """Invite a user, and return the code of the printed link."""
    made = run("users", "invite", name, *options)
    assert made.exit_code == 0, made.output
    link = made.stdout.strip().splitlines()[-1]
    assert "/invitation#ty_invitation_" in link
    return link.partition("#")[2]


def test_a_user_is_invited_logs_in_and_sees_own_jobs(
    yard: Yard, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept(yard, invited(run, "ada", "--email", "ada@example.org"))
    listed = {each["name"]: each for each in json.loads(run("users", "--json").stdout)}
    assert (listed["ada"]["role"], listed["ada"]["email"]) == ("user", "ada@example.org")
    assert listed["ada"]["has_password"]
    assert run("users").stdout.splitlines()[0].split()[:3] == ["NAME", "ROLE", "STATE"]
    with yard.connect() as admin:
        admin.submit({"name": "of-admin"})
    login = run("login", yard.url, "--user", "ada", "--profile", "ada", stdin=f"{PASSWORD}\n")
    assert login.exit_code == 0, login.output
    assert f"Logged in to {yard.url} as ada" in login.output
    assert PASSWORD not in login.output + config_path().read_text()
    for name in ("TRAINYARD_URL", "TRAINYARD_TOKEN"):
        monkeypatch.delenv(name)
    choose_profile("ada")
    with Client() as ada:
        ada.submit({"name": "of-ada"})
    shown = run("--profile", "ada", "whoami")
    assert shown.stdout.startswith("ada (user), by the token '")
    assert "jobs:write" in shown.stdout
    mine = json.loads(run("--profile", "ada", "ps", "--mine", "--json").stdout)
    assert [(each["name"], each["owner"]) for each in mine] == [("of-ada", "ada")]
    theirs = json.loads(run("--profile", "ada", "ps", "--owner", "admin", "--json").stdout)
    assert [each["name"] for each in theirs] == ["of-admin"]
    none = run("--profile", "ada", "ps", "--owner", "nobody-here")
    assert "No job matches" in none.stdout
    own = json.loads(run("--profile", "ada", "tokens", "--json").stdout)
    assert [each["user"] for each in own] == ["ada"]
    made = run("--profile", "ada", "tokens", "create", "ci", "--scope", "jobs:read")
    assert made.stdout.startswith("ty_api_")
    assert run("--profile", "ada", "tokens", "revoke", "ci").exit_code == 0
    refused = run("--profile", "ada", "users")
    assert refused.exit_code == 1
    assert "this needs users:admin" in refused.output


def test_an_address_is_needed_once(yard: Yard, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    accept(yard, invited(run, "ada"))
    assert run("login", yard.url, "--token", yard.token).exit_code == 0
    for name in ("TRAINYARD_URL", "TRAINYARD_TOKEN"):
        monkeypatch.delenv(name)
    again = run("login", "--user", "ada", stdin=f"{PASSWORD}\n")
    assert again.exit_code == 0, again.output
    wrong = run("login", "--user", "ada", stdin="another password\n")
    assert wrong.exit_code == 1
    assert "name or password is wrong" in wrong.output
    both = run("login", "--user", "ada", "--token", "x")
    assert "exclude each other" in both.output
    assert run("whoami").stdout.startswith("ada (user)"), "the former token is kept"


def test_a_user_is_changed_reset_and_disabled(yard: Yard, run: Run) -> None:
    first = invited(run, "ada")
    second = run("users", "reset", "ada").stdout.strip().splitlines()[-1].partition("#")[2]
    with pytest.raises(ApiError, match="expired or used up"):
        accept(yard, first)
    accept(yard, second)
    changed = json.loads(run("users", "role", "ada", "operator", "--json").stdout)
    assert changed[0]["role"] == "operator"
    words = ("users", "change", "ada", "--unix-account")
    assert json.loads(run(*words, "ada", "--json").stdout)[0]["unix_account"] == "ada"
    assert json.loads(run(*words, "", "--json").stdout)[0]["unix_account"] is None
    disabled = json.loads(run("users", "disable", "ada", "--json").stdout)
    assert disabled[0]["state"] == "disabled"
    with Client(yard.url) as client, pytest.raises(ApiError, match="is disabled"):
        client.password_token("ada", PASSWORD, token_name="x")
    assert json.loads(run("users", "enable", "ada", "--json").stdout)[0]["state"] == "active"
    with Client(yard.url) as client:
        assert client.password_token("ada", PASSWORD, token_name="x").user == "ada"
    rows = run("tokens", "--all").stdout.splitlines()
    assert rows[0].split()[:3] == ["ID", "NAME", "USER"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["make", "x"], "Write `trainyard users`"),
        (["invite"], "Write `trainyard users`"),
        (["role", "ada"], "Write `trainyard users`"),
        (["change", "ada"], "`change` needs --unix-account"),
        (["list", "--unix-account", "ada"], "`change` needs --unix-account"),
        (["role", "admin", "root"], "role='root' is no role"),
        (["disable", "ada"], "No user has the name 'ada'"),
        (["list", "--role", "user"], "are options of `invite`"),
        (["disable", "admin"], "is the built-in user"),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    yard: Yard, run: Run, words: list[str], answer: str
) -> None:
    del yard
    refused = run("users", *words)
    assert refused.exit_code != 0
    assert answer in " ".join(refused.output.split())


@pytest.mark.parametrize("approved", [True, False])
def test_a_login_is_approved_in_a_browser(
    yard: Yard, run: Run, monkeypatch: pytest.MonkeyPatch, approved: bool
) -> None:
    """The command prints a link and a code, and polls until a person has decided."""
    accept(yard, invited(run, "ada"))
    for name in ("TRAINYARD_URL", "TRAINYARD_TOKEN"):
        monkeypatch.delenv(name)
    begin, begun = Client.begin_device_login, list[DeviceLogin]()

    def noted(self: Client, host: str) -> DeviceLogin:
        begun.append(begin(self, host))
        return begun[0]

    def decide(_: float) -> None:
        """Decide in a browser while the command waits."""
        if decided:
            return
        decided.append(approved)
        with httpx.Client(base_url=yard.url, headers={"origin": yard.url}) as browser:
            session = {"name": "ada", "password": PASSWORD}
            assert browser.post("/api/v1/auth/session", json=session).status_code == 201
            body = {"user_code": begun[0].user_code, "approved": approved}
            reply = browser.post("/api/v1/auth/device/decision", json=body)
            assert reply.status_code == 204, reply.text

    decided = list[bool]()
    busy = ProblemDetails(title="busy", status=429, detail="too many polls", request_id="r")
    failures: list[TrainyardError] = [ConnectionFailedError("no route"), ApiError(busy)]
    exchange = Client.device_token

    def exchanged(self: Client, code: str) -> TokenView:
        if failures:  # they pass, and do not end the login
            raise failures.pop()
        return exchange(self, code)

    monkeypatch.setattr(Client, "begin_device_login", noted)
    monkeypatch.setattr(Client, "device_token", exchanged)
    monkeypatch.setattr(local, "_is_terminal", lambda: True)
    monkeypatch.setattr(time, "sleep", decide)
    login = run("login", yard.url)
    assert begun[0].verification_uri_complete in login.stderr
    assert begun[0].user_code in login.stderr
    assert failures == []
    if approved:
        assert login.exit_code == 0, login.output
        assert run("whoami").stdout.startswith("ada (user), by the token '")
    else:
        assert login.exit_code == 2
        assert "denied in the browser" in login.output
