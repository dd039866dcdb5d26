"""`ps` and `show` with names or filters that match no single job."""

from __future__ import annotations

from tests.library.conftest import Run, Yard


def test_commands_name_a_job_by_its_id_where_another_one_has_its_name(yard: Yard, run: Run) -> None:
    first = yard.harness.submit(name="twin")
    assert "trainyard cancel twin " in run("show", first).stdout
    second = yard.harness.submit(name="twin")
    assert f"trainyard cancel {first} " in run("show", first).stdout
    wrong = run("show", "twin")
    assert wrong.exit_code == 2
    assert f"could be any of {second} (queued), {first} (queued): give an id" in wrong.stderr


def test_a_filter_that_matches_nothing_is_not_an_empty_server(yard: Yard, run: Run) -> None:
    yard.harness.submit(name="alone")
    for option, value in (("--tag", "none"), ("--state", "failed"), ("--search", "zzz")):
        told = run("ps", option, value).stdout
        assert told == "No job matches; `trainyard ps` without options lists jobs.\n"
