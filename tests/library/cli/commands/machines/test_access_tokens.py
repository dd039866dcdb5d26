"""`tokens`: listed, created with scopes, and revoked."""

from __future__ import annotations

import json

import pytest

from tests.library.conftest import Run, Yard
from trainyard.client.errors import ForbiddenError
from trainyard.client.sdk import Client


def test_a_token_is_made_with_scopes_listed_and_revoked(yard: Yard, run: Run) -> None:
    made = run(
        "tokens", "create", "ci", "--scope", "jobs:write", "--scope", "jobs:read", "--days", "1"
    )
    assert made.exit_code == 0, made.stderr
    secret = made.stdout.strip()
    assert secret.startswith("ty_api_")
    with Client(yard.url, secret) as limited:
        assert limited.session().permissions == ("jobs:read", "jobs:write")
        assert limited.submit({"name": "tiny"}).name == "tiny"
        with pytest.raises(ForbiddenError, match="this needs nodes:read; the token 'ci' has"):
            list(limited.nodes())
    lines = run("tokens").stdout.splitlines()
    assert lines[0].split() == ["ID", "NAME", "KIND", "AGE", "USED", "ENDS", "SCOPES"]
    (row,) = (line for line in lines if " ci " in line)
    assert row.endswith("jobs:read jobs:write")
    assert secret not in run("tokens", "--json").stdout
    assert "ci" not in run("tokens", "revoke", "ci").stdout


def test_a_join_token_as_json(yard: Yard, run: Run) -> None:
    del yard
    made = json.loads(run("tokens", "create", "gpu-9", "--kind", "join", "--json").stdout)
    assert (made["kind"], made["scopes"]) == ("join", None)
    assert made["secret"].startswith("ty_join_")
    listed = json.loads(run("tokens", "--json").stdout)
    assert {each["name"] for each in listed} >= {"admin", "gpu-9"}
    assert run("tokens", "revoke", made["id"]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["make", "x"], "Write `trainyard tokens`"),
        (["create"], "Write `trainyard tokens`"),
        (["revoke", "x", "--days", "1"], "Write `trainyard tokens`"),
        (["create", "x", "--kind", "node"], "--kind='node' is no kind"),
        (["create", "x", "--scope", "jobs:fly"], "--scope='jobs:fly' is no permission"),
        (["create", "x", "--scope", "jobs:read", "--kind", "join"], "only for kind 'api'"),
        (["create", "x", "--days", "nan"], "--days=nan is no lifetime"),
        (["create", "x", "--days", "inf"], "--days=inf is no lifetime"),
        (["revoke", "nothing"], "No token has the id or name 'nothing'"),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    yard: Yard, run: Run, words: list[str], answer: str
) -> None:
    del yard
    refused = run("tokens", *words)
    assert refused.exit_code == 2
    assert answer in refused.stderr


def test_several_tokens_of_one_name_are_revoked_by_id(yard: Yard, run: Run) -> None:
    del yard
    for _ in range(2):
        run("tokens", "create", "gpu", "--kind", "join")
    refused = run("tokens", "revoke", "gpu")
    assert refused.exit_code == 2
    assert "2 tokens have the name 'gpu'" in refused.stderr
