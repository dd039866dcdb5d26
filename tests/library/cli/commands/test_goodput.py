"""`goodput` and its SDK call against the real API."""

from __future__ import annotations

import json
from datetime import date, timedelta

import pytest
from sqlalchemy import update

from server.core.database.tables import jobs, nodes
from server.telemetry.goodput.capacity import CapacityKeeper
from tests.library.conftest import Run, Yard
from trainyard.client.errors import InvalidRequestError
from trainyard.client.sdk import Client
from trainyard.protocol.goodput import JOB_CATEGORIES, WORDS, TimeCategory


@pytest.fixture
def waited(yard: Yard) -> str:
    """A job that waited for 90 seconds until a person stopped it."""
    job_id = yard.harness.submit(name="waited")
    with yard.connect() as client:
        ended_at = client.stop(job_id).ended_at
    assert ended_at is not None
    with yard.harness.context.database.write() as connection:
        mine = update(jobs).where(jobs.c.id == job_id)
        connection.execute(mine.values(created_at=ended_at - timedelta(seconds=90)))
    return job_id


def test_a_line_for_each_category_with_time_and_the_ratios(run: Run, waited: str) -> None:
    head, first, wall, _, ratios = run("goodput", waited).stdout.splitlines()
    assert head.split() == ["CATEGORY", "TIME", "SHARE"]
    assert first.split() == ["first", "wait", "for", "slots", "1m", "30s", "100", "%", "█" * 30]
    assert wall.split() == ["wall", "time", "1m", "30s"]
    assert ratios == "Goodput 0 %, ETTR 0 %, 0 failures."


def test_steps_without_their_times_have_no_ratio(
    yard: Yard, run: Run, waited: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    untimed = {"goodput": None, "ettr": None}
    with yard.connect() as client:
        view = client.goodput(waited).model_copy(update=untimed)
    monkeypatch.setattr(Client, "goodput", lambda *_: view)
    last = run("goodput", waited).stdout.splitlines()[-1]
    assert last.startswith("Goodput and ETTR are unknown: no step times are recorded")
    assert last.endswith("0 failures.")


def test_json_has_every_category(yard: Yard, run: Run, waited: str) -> None:
    view = json.loads(run("goodput", "@last", "--json").stdout)
    assert [each["category"] for each in view["categories"]] == list(JOB_CATEGORIES)
    assert view["wall_milliseconds"] == 90_000
    with yard.connect() as client:
        assert client.goodput(waited).model_dump(mode="json") == view


def test_every_category_has_its_words() -> None:
    assert list(WORDS) == list(TimeCategory)


def test_without_a_job_the_slots_of_the_cluster(yard: Yard, run: Run) -> None:
    context = yard.harness.context
    with context.database.write() as connection:
        joined = update(nodes).values(registered_at=context.now() - timedelta(days=2))
        connection.execute(joined)
    CapacityKeeper(context).run()
    head, idle, whole, _, ratio = run("goodput").stdout.splitlines()
    assert head.split() == ["SLOTS", "WERE", "SLOT", "TIME", "SHARE"]
    assert idle.split() == ["idle", "8d", "0h", "100", "%", "█" * 30]
    assert whole.split() == ["all", "slots", "8d", "0h"]
    assert ratio == "Goodput 0 %, 0 failures."
    day = (context.now() - timedelta(days=1)).date().isoformat()
    view = json.loads(run("goodput", "--from", day, "--to", day, "--json").stdout)
    assert [each["day"] for each in view["days"]] == [day]
    assert view["slot_milliseconds"] == 4 * 86_400_000
    with yard.connect() as client, pytest.raises(InvalidRequestError, match="are not 1 to 92 days"):
        client.cluster_goodput(first=date(2021, 1, 1))


def test_a_job_without_steps_has_nothing_to_replay(run: Run, waited: str) -> None:
    told = run("goodput", waited, "--save-every", "5").stdout
    assert told == "No step times are recorded: there is nothing to replay.\n"


@pytest.mark.parametrize("options", [("--save-every", "5"), ("@last", "--from", "2026-01-01")])
def test_options_of_the_other_form_are_refused(run: Run, options: tuple[str, ...]) -> None:
    assert run("goodput", *options).exit_code == 2
