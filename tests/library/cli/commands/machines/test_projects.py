"""`projects`: listed, created, changed and deleted."""

from __future__ import annotations

import json

from tests.library.conftest import Run, Yard


def test_projects_are_made_changed_listed_and_deleted(yard: Yard, run: Run) -> None:
    made = run("projects", "create", "vision", "--weight", "2", "--slot-hours", "1000")
    assert made.exit_code == 0
    shown = run("projects", "set", "vision", "--max-slots", "16", "--slot-hours", "none", "--json")
    (project,) = json.loads(shown.stdout)
    assert (project["weight"], project["max_slots"]) == (2, 16)
    assert project["slot_hours_per_month"] is None
    yard.harness.submit(name="seen", project="vision")
    yard.harness.submit(name="other")
    assert yard.harness.place() == 2
    lines = run("projects").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "default", "vision"]
    assert lines[2].split()[1:8] == ["2", "1", "16", "50", "%", "66.7", "%"]
    jobs = run("ps", "--project", "vision").stdout
    assert "seen" in jobs
    assert "other" not in jobs
    assert "vision" in run("show", "seen").stdout
    refused = run("projects", "delete", "vision")
    assert refused.exit_code == 1
    assert "has jobs" in refused.stderr
    run("projects", "create", "empty")
    assert "empty" not in run("projects", "delete", "empty").stdout


def test_what_is_no_command_is_refused_with_the_commands(yard: Yard, run: Run) -> None:
    del yard
    for wrong in (["make", "x"], ["create"], ["set", "default"], ["delete", "x", "--weight", "1"]):
        refused = run("projects", *wrong)
        assert refused.exit_code == 2
        assert "trainyard projects create NAME" in refused.stderr
    refused = run("projects", "set", "default", "--max-slots", "many")
    assert "--max-slots='many' is not a number" in refused.stderr
