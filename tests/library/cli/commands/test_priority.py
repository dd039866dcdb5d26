"""`priority`: by number and by name."""

from __future__ import annotations

from tests.library.conftest import Run, Yard


def test_a_priority_is_changed_by_name_and_by_number(yard: Yard, run: Run) -> None:
    job_id = yard.harness.submit(name="tiny")
    assert "Priority: high" in run("priority", "tiny", "high").stdout
    assert yard.harness.job(job_id).priority == 50
    assert run("priority", "tiny", "--", "-20").exit_code == 0
    assert yard.harness.job(job_id).priority == -20
    shown = run("show", "tiny").stdout
    assert "priority   -20" in shown.replace("  priority", "priority")
    refused = run("priority", "tiny", "urgent")
    assert refused.exit_code != 0
    assert "'urgent' is no priority: use low, normal, high" in refused.stderr


def test_a_spec_names_a_priority(yard: Yard, run: Run) -> None:
    assert run("submit", "--set", "name=named", "--set", "resources.priority=low").exit_code == 0
    assert "priority" in run("show", "named").stdout
    assert "low" in run("show", "named").stdout
