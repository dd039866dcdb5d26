"""Use of sources: open requests are read, ended ones are summed by the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from sqlalchemy import Connection, insert

from server.cluster.supply.rows import StoredSource
from server.cluster.supply.usage import read_use, read_waits
from server.core.context import Context
from server.core.database.source_tables import node_requests, sources
from tests.server.clock import FakeClock
from tests.server.cluster.supply.site import Site


def test_node_hours_are_those_of_the_calendar_month(
    site: Site, context: Context, clock: FakeClock
) -> None:
    def moves_to(day: datetime) -> None:
        clock.advance((day - clock.now()).total_seconds())

    month = datetime(clock.now().year + 1, 5, 1, tzinfo=UTC)
    moves_to(month.replace(month=4))
    former, across, stays = site.running(), site.running(2), site.running(3)
    moves_to(month.replace(month=4, day=2))
    site.describe(former, "ended", gone=True)
    moves_to(month.replace(day=2))
    site.describe(across, "ended", gone=True)
    within = site.running()
    site.withdraw(site.ask())  # it never began
    moves_to(month.replace(day=3))
    site.describe(within, "ended", gone=True)
    site.describe(stays, "running", ends_at=month.replace(day=4).timestamp())
    with context.database.read() as connection:
        use = read_use(connection, ["slurm"], clock.now())["slurm"]
    assert (use.pending, use.asked, use.running) == (0, 0, 3)
    assert use.hours == pytest.approx(2 * 24 + 24 + 3 * 48)
    assert use.committed == pytest.approx(use.hours + 3 * 24)


class Counting:
    """A connection that counts its returned rows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.rows = 0

    def execute(self, *arguments: Any) -> Any:
        frozen = self._connection.execute(*arguments).freeze()
        self.rows += len(frozen.data)
        return frozen()


def test_the_use_of_a_month_is_one_row(site: Site, context: Context, clock: FakeClock) -> None:
    for _ in range(5):
        request_id = site.running()
        clock.advance(3600)
        site.describe(request_id, "ended", gone=True)
    with context.database.read() as connection:
        counting = Counting(connection)
        use = read_use(cast(Connection, counting), ["slurm"], context.now())
    assert use["slurm"].hours == pytest.approx(5)
    assert counting.rows == 1


def vars_of(row: StoredSource) -> dict[str, Any]:
    return {
        name: getattr(row, name) for name in map(str, sources.columns.keys()) if hasattr(row, name)
    }


def test_a_busy_source_hides_the_waits_of_no_other(
    site: Site, context: Context, clock: FakeClock
) -> None:
    """The mean of the newest five of each source."""
    with context.database.write() as connection:
        mine = StoredSource.one(connection, StoredSource.select())
        busy = {**vars_of(mine), "name": "busy"}
        connection.execute(insert(sources).values(busy))
        row: dict[str, Any] = {"state": "ended", "nodes": 1, "caused_by": "ada", "purpose": "nodes"}
        row |= {"shape": mine.shape, "by_person": False}
        for source, count, waited in (("slurm", 6, 60), ("busy", 300, 1)):
            began = clock.now() - timedelta(hours=2 if source == "slurm" else 1)
            rows = [
                {**row, "id": f"{source:0>20}{n:06}", "source": source, "created_at": began}
                | {"started_at": began + timedelta(seconds=waited + n)}
                for n in range(count)
            ]
            connection.execute(insert(node_requests), rows)
    with context.database.read() as connection:
        waits = read_waits(connection, [], context.now())
    assert waits == pytest.approx({"slurm": 60 + (1 + 2 + 3 + 4 + 5) / 5, "busy": 1 + 297})
