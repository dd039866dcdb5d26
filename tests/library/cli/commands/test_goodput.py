"""`goodput` and its SDK call against the real API."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from sqlalchemy import update

from server.database.tables import jobs
from tests.library.conftest import Run, Yard
from trainyard.cli.commands.goodput import WORDS
from trainyard.protocol.goodput import TimeCategory


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
    assert first.split() == ["first", "wait", "for", "slots", "1m", "30s", "100.0%", "█" * 30]
    assert wall.split() == ["wall", "time", "1m", "30s"]
    assert ratios == "Goodput 0.0%, ETTR 0.0%, 0 failures."


def test_json_has_every_category(yard: Yard, run: Run, waited: str) -> None:
    view = json.loads(run("goodput", "@last", "--json").stdout)
    assert [each["category"] for each in view["categories"]] == list(TimeCategory)
    assert view["wall_milliseconds"] == 90_000
    with yard.connect() as client:
        assert client.goodput(waited).model_dump(mode="json") == view


def test_every_category_has_its_words() -> None:
    assert list(WORDS) == list(TimeCategory)
