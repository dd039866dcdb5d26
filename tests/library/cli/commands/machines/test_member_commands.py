"""`members` and `service-accounts` from the command line."""

from __future__ import annotations

import json

from tests.library.conftest import Run, Yard
from tests.server.members import add_user


def listed(run: Run, *words: str) -> dict[str, str]:
    shown = json.loads(run(*words, "--json").stdout)
    return {each.get("user") or each["name"]: each["role"] for each in shown}


def test_members_are_added_and_removed(run: Run, yard: Yard) -> None:
    run("projects", "create", "vision")
    add_user(yard.harness.context, "ada")
    of_vision = ("--project", "vision")
    assert run("members", *of_vision).stdout.startswith("No members")
    assert listed(run, "members", "add", "ada", "member", *of_vision) == {"ada": "member"}
    assert listed(run, "members", "add", "ada", "viewer", *of_vision) == {"ada": "viewer"}
    assert run("members", *of_vision).stdout.splitlines()[1].split()[:2] == ["ada", "viewer"]
    for role in ("viewer", "none"):
        shown = run("members", "everyone", role, *of_vision).stdout
        assert f"Role of everyone: {role}. Limits of each user: none." in shown
    shown = run("members", "limits", "--max-slots", "8", "--max-running", "2", *of_vision).stdout
    assert shown.endswith("Limits of each user: 8 slots, 2 running jobs.\n")
    assert listed(run, "members", "remove", "ada", *of_vision) == {}
    wrong = run("members", "add", "ada", "owner", *of_vision)
    assert wrong.exit_code == 2
    assert "Legal: viewer, member, maintainer" in wrong.stderr
    assert "is not a command" in run("members", "sing").stderr


def test_users_are_limited(run: Run, yard: Yard) -> None:
    run("projects", "create", "vision", "--max-slots", "16")
    add_user(yard.harness.context, "ada")
    of_vision = ("--project", "vision")

    def limits(*words: str) -> tuple[list[int | None], list[int | None]]:
        """Return the member's own limits and the effective ones after a command."""
        (ada,) = json.loads(run("members", *words, *of_vision, "--json").stdout)
        own = [ada["max_slots"], ada["max_running"]]
        return own, [ada["effective_max_slots"], ada["effective_max_running"]]

    added = limits("add", "ada", "member", "--max-slots", "8", "--max-running", "2")
    assert added == ([8, 2], [8, 2])
    assert limits("limits", "--max-running", "4") == ([8, 2], [8, 2])
    assert limits("add", "ada", "viewer") == ([8, 2], [8, 2]), "absent limits stay"
    removed = limits("add", "ada", "member", "--max-running", "none")
    assert removed == ([8, None], [8, 4])
    row = run("members", *of_vision).stdout.splitlines()[1]
    assert row.split()[3:9] == ["0", "of", "8", "0", "of", "4"]
    above = run("members", "limits", "--max-slots", "17", *of_vision)
    assert "max_slots=17 is above the max_slots of the project; legal: 0 to 16" in above.stderr
    wrong = run("members", "remove", "ada", "--max-slots", "8", *of_vision)
    assert (wrong.exit_code, "options of `add` and `limits`" in wrong.stderr) == (2, True)
    assert "not a number" in run("members", "limits", "--max-slots", "many", *of_vision).stderr
    assert "is not a command" in run("members", "limits", *of_vision).stderr


def test_service_accounts_have_tokens(run: Run, yard: Yard) -> None:
    assert run("service-accounts").stdout.startswith("No service accounts")
    made = listed(run, "service-accounts", "create", "nightly", "--role", "viewer")
    assert made == {"nightly@default": "viewer"}
    token = run("service-accounts", "token", "nightly", "ci", "--scope", "jobs:read", "--days", "9")
    assert token.stdout.startswith("ty_api_")
    assert "ci" in run("service-accounts", "tokens", "nightly").stdout
    unknown = run("service-accounts", "revoke", "nightly", "other")
    assert "has no token 'other'" in unknown.stderr
    assert "ci" not in run("service-accounts", "revoke", "nightly@default", "ci").stdout
    assert listed(run, "service-accounts", "remove", "nightly") == {}
    assert "options of `token`" in run("service-accounts", "create", "x", "--days", "1").stderr


def test_a_group_of_the_issuer_gets_a_role(yard: Yard, run: Run) -> None:
    assert "No group" in run("groups").stdout
    made = run("groups", "set", "/research/vision", "member", "--json")
    assert [(each["group"], each["role"]) for each in json.loads(made.stdout)] == [
        ("/research/vision", "member")
    ]
    assert run("groups").stdout.splitlines()[0].split() == ["GROUP", "ROLE", "SINCE"]
    assert "Legal: viewer" in run("groups", "set", "/research/vision", "owner").output
    assert "is not a command" in run("groups", "remove", "/research/vision").output
    assert "No group" in run("groups", "set", "/research/vision", "none").stdout
    del yard
