"""`audit`: rows of the audit log from the command line and the SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from server.core.audit.chain import seal
from tests.library.conftest import Run, Yard
from trainyard.cli.commands.machines import audit_listing


@pytest.fixture
def filled(yard: Yard, run: Run) -> Yard:
    """A project whose weight was changed."""
    assert run("projects", "create", "vision").exit_code == 0
    assert run("projects", "set", "vision", "--weight", "2").exit_code == 0
    list(seal(yard.harness.context))
    return yard


def test_rows_are_listed_and_filtered(filled: Yard, run: Run) -> None:
    lines = run("audit", "--project", "vision").stdout.splitlines()
    assert lines[0].split() == ["SEQ", "AT", "WHO", "DID", "ON", "CHANGE"]
    assert "projects_change changed" in lines[1]
    assert "weight: 1.0 -> 2.0" in lines[1]
    assert "projects_create changed" in lines[2]
    shown = json.loads(run("audit", "--operation", "projects_change", "--json").stdout)
    assert [row["after"] for row in shown] == [{"weight": 2.0}]
    assert len(json.loads(run("audit", "--project", "vision", "-n", "1", "--json").stdout)) == 1
    assert "No row matches" in run("audit", "--user", "eve").stdout
    assert json.loads(run("audit", "--until", "2020-01-01", "--json").stdout) == []
    wrong = run("audit", "--since", "yesterday")
    assert (wrong.exit_code, "--since yesterday is no time" in wrong.output) == (2, True)


def test_follow_prints_new_rows_once(
    filled: Yard, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: Iterator[int] = iter(range(3))

    def pause(_: float) -> None:
        number = next(rounds, None)
        if number is None:
            raise KeyboardInterrupt
        if number == 1:
            with filled.connect() as client:
                client.set_everyone("vision", "viewer")
            list(seal(filled.harness.context))

    monkeypatch.setattr(audit_listing, "sleep", pause)
    printed = run("audit", "--project", "vision", "--follow").stdout.splitlines()
    assert [line.split("  ")[2] for line in printed] == [
        "projects_create changed",
        "projects_change changed",
        "members_put_everyone changed",
    ]


def test_the_sdk_exports_lines(filled: Yard) -> None:
    with filled.connect() as client:
        lines = [json.loads(line) for line in client.export_audit()]
        assert [line["seq"] for line in lines] == [*range(1, len(lines) + 1)]
        assert len(list(client.export_audit(after=1))) == len(lines) - 1
