"""`priority` and `queue`: the order of waiting jobs, and the forecast for a spec."""

from __future__ import annotations

from pathlib import Path

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


def test_the_queue_is_listed_and_a_spec_is_tried(yard: Yard, run: Run, tmp_path: Path) -> None:
    assert run("queue").stdout == "No job waits.\n"
    yard.harness.submit(name="busy", resources={"world_size": 4})
    assert yard.harness.place() == 1
    yard.harness.submit(name="second")
    yard.harness.submit(name="first", resources={"priority": 7})
    assert yard.harness.place() == 0
    lines = run("queue").stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["NAME", "first", "second"]
    assert "needs 1 slot, 0 free, 4 held by busy" in lines[1]
    assert "POS" in run("show", "second").stdout
    spec = tmp_path / "job.toml"
    spec.write_text('name = "tried"\n')
    assert "It would wait at position 3" in run("queue", "--what-if", str(spec)).stdout
    yard.harness.add_node("another", slots=4)
    assert yard.harness.place() == 2
    assert run("queue", "--what-if", str(spec)).stdout == "It would start immediately.\n"
