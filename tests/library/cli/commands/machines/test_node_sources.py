"""`sources`: listed, examined, paused; nodes requested, cancelled and explained."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import uvicorn
from rich.console import Console, RenderableType

from tests.library.cli.commands.machines.fake_sources import ID, FakeSources, a_request, a_source
from tests.library.conftest import Run
from tests.server.api.serving import listening_on
from trainyard.cli.commands.machines.node_sources import (
    draw_findings,
    draw_requests,
    draw_sources,
)
from trainyard.protocol.node_sources.messages import CheckResult, NeedsLogin


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSources]:
    fake = FakeSources({"slurm-a100": a_source()})
    config = uvicorn.Config(fake.app(), log_level="error", lifespan="off")
    with listening_on(config) as (host, port):
        monkeypatch.setenv("TRAINYARD_URL", f"http://{host}:{port}")
        monkeypatch.setenv("TRAINYARD_TOKEN", "ty_admin_x")
        yield fake


def test_sources_are_listed_with_what_keeps_each_from_supplying_nodes(
    fake: FakeSources, run: Run
) -> None:
    login = NeedsLogin(reason="Permission denied", command="ssh -MNf gate")
    for source in (
        a_source("login", needs_login=login, online=False),
        a_source("away", online=False, error="slurmctld is down"),
        a_source("held", paused=True, paused_by="ada", pause_reason="maintenance"),
        a_source("broken", error="sbatch: invalid account"),
    ):
        fake.sources[source.name] = source
    lines = run("sources").stdout.splitlines()
    assert lines == run("sources", "ls").stdout.splitlines()
    head, *rows = (line.split() for line in lines)
    assert head[:4] == ["NAME", "KIND", "STATE", "NODE"]
    assert rows[0][:10] == ["slurm-a100", "slurm", "online", "8", "cuda", "2", "4", "16",
                            "1,234.6", "5,000"]  # fmt: skip
    assert rows.pop() == ["Log", "in", "to", "login:", "ssh", "-MNf", "gate"]
    why = {row[0]: " ".join(row[2:]) for row in rows}
    assert why["login"].startswith("needs login")
    assert why["login"].endswith("Permission denied")
    assert why["away"].startswith("offline")
    assert why["away"].endswith("slurmctld is down")
    assert why["held"].startswith("paused")
    assert why["held"].endswith("by ada: maintenance")
    assert why["broken"].startswith("error")
    assert [one["name"] for one in json.loads(run("sources", "--json").stdout)] == list(
        fake.sources
    )


def test_a_source_is_shown_with_its_open_requests(fake: FakeSources, run: Run) -> None:
    fake.requests = [
        a_request(1),
        a_request(2, state="running", engine_state="unknown", joined=("a", "b"), reason=""),
        a_request(3, state="ended"),
    ]
    shown = run("sources", "show", "slurm-a100").stdout
    assert "gpu=a100" in shown
    assert "4 running and 2 waiting of at most 16; a request has at most 8" in shown
    assert "1,234.6 of 5,000 this month" in shown
    assert "4h 00m" in shown
    *_, pending, running = shown.splitlines()
    assert ("◔ pending" in pending, "Priority" in pending) == (True, True)
    assert "● running?" in running
    assert json.loads(run("sources", "show", "slurm-a100", "--json").stdout)["name"] == "slurm-a100"
    unknown = run("sources", "show", "none")
    assert (unknown.exit_code, "No source has the name none" in unknown.stderr) == (2, True)


def test_a_source_is_paused_taken_up_again_and_forgotten(fake: FakeSources, run: Run) -> None:
    paused = run("sources", "pause", "slurm-a100", "--reason", "maintenance")
    assert "by ada: maintenance" in paused.stdout
    assert "paused" not in run("sources", "unpause", "slurm-a100").stdout
    fake.requests = [a_request(1)]
    refused = run("sources", "delete", "slurm-a100")
    assert (refused.exit_code, "open requests" in refused.stderr) == (1, True)
    fake.requests = []
    assert "No sources" in run("sources", "delete", "slurm-a100").stdout


def test_nodes_are_requested_explained_and_cancelled(fake: FakeSources, run: Run) -> None:
    made = run("sources", "request", "slurm-a100", "--nodes", "3", "--json")
    assert json.loads(made.stdout)["nodes"] == 3
    run("sources", "request", "slurm-a100")
    listed = json.loads(run("sources", "requests", "slurm-a100", "--json").stdout)
    assert [one["nodes"] for one in listed] == [1, 3]
    explained = run("sources", "explain", f"{ID}0")
    assert ("3 nodes of slurm-a100" in explained.stdout, "Resources" in explained.stdout) == (
        True,
        True,
    )
    ambiguous = run("sources", "cancel", ID[:4])
    assert ambiguous.exit_code == 2
    assert f"2 open requests have an id that begins with '{ID[:4]}'" in ambiguous.stderr
    assert "leaving" in run("sources", "cancel", f"{ID}0").stdout
    assert "ended" in run("sources", "end", f"{ID}0").stdout
    assert len(run("sources", "requests", "slurm-a100").stdout.splitlines()) == 3
    assert len(run("sources", "requests", "slurm-a100", "--open").stdout.splitlines()) == 2
    assert "no open request has" in run("sources", "cancel", f"{ID}0").stderr


def test_an_explanation_that_does_not_come_shows_the_last_reason(
    fake: FakeSources, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.cli.commands.machines.node_sources.EXPLANATION_SECONDS", 0.0)
    fake.requests, fake.explanation = [a_request(1)], "Priority"
    explained = run("sources", "explain", f"{ID}1")
    assert explained.exit_code == 0
    assert "Priority" in explained.stdout
    assert "No new reason" in explained.stderr


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_a_check_prints_its_findings_and_fails_with_one_of_them(
    fake: FakeSources, run: Run, passed: bool, code: int
) -> None:
    fake.findings = (
        CheckResult(name="route", passed=True, detail="answered in 12 ms"),
        CheckResult(name="roots", passed=passed, detail="uid 1000 in /data"),
    )
    checked = run("sources", "check", "slurm-a100", "--wait")
    assert checked.exit_code == code
    first, second = (line.split() for line in checked.stdout.splitlines())
    assert first[:2] == ["route", "✓"]
    assert second == ["roots", "✓" if passed else "✗", "uid", "1000", "in", "/data"]


def test_a_check_names_what_keeps_it_waiting(fake: FakeSources, run: Run) -> None:
    away = a_source(online=False, error="no route to the login node")
    fake.sources["slurm-a100"] = away
    checked = run("sources", "check", "slurm-a100", "--wait")
    assert "The source is offline: no route to the login node." in checked.stderr
    fake.sources["slurm-a100"] = a_source()
    assert "The source is" not in run("sources", "check", "slurm-a100", "--wait").stderr


def test_a_check_that_ends_without_findings_fails_with_the_reason(
    fake: FakeSources, run: Run
) -> None:
    fake.check_reason = "invalid account"
    checked = run("sources", "check", "slurm-a100", "--wait")
    assert checked.exit_code == 1
    assert "ended unfinished: invalid account" in checked.stdout
    assert "its check" in run("sources", "check", "slurm-a100").stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["make", "x"], "`sources make x` is not a command"),
        (["show"], "trainyard sources request NAME"),
        (["pause", "x", "--nodes", "2"], "--nodes belongs to `sources request`"),
        (["show", "x", "--wait"], "--wait belongs to `sources check`"),
        (["ls", "--reason", "x"], "--reason belongs to `sources pause`"),
        (["show", "x", "--open"], "--open belongs to `sources requests`"),
    ],
)
def test_what_is_no_command_is_refused_with_the_commands(
    fake: FakeSources, run: Run, arguments: list[str], told: str
) -> None:
    del fake
    refused = run("sources", *arguments)
    assert (refused.exit_code, told in refused.stderr) == (2, True), refused.stderr


def test_a_narrow_terminal_cuts_neither_a_login_nor_a_finding() -> None:
    def drawn(shown: RenderableType) -> list[str]:
        console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
        with console.capture() as capture:
            console.print(shown)
        lines = capture.get().splitlines()
        assert max(map(len, lines)) <= 80
        return [line.rstrip() for line in lines]

    command = "ssh -MNf -o ControlPath=~/.ssh/trainyard-gate gate.lab.example.org"
    needs = NeedsLogin(reason="the master connection has expired", command=command)
    listed = drawn(draw_sources([a_source(), a_source("lab", needs_login=needs)]))
    assert listed[2].endswith(needs.reason)
    assert " ".join(listed[3:]) == f"Log in to lab: {command}"
    reason = "Resources: nodes are DOWN, DRAINED"
    _, request = drawn(draw_requests([a_request(1, reason=reason, caused_by="llama-70b")]))
    assert request.split()[-5:] == reason.split()
    detail = "checkpoints: /scratch is not writable for uid 2041; " + " ".join(["chown it"] * 9)
    finding = CheckResult(name="roots", passed=False, detail=detail)
    found = drawn(draw_findings(a_request(1, results=(finding,))))
    assert " ".join(" ".join(found).split()) == f"roots ✗ {detail}"
