"""Upkeep: each kind has its turn every minute, whatever the others do."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import insert, select

from server.core.context import Context
from server.core.database.engine import LeadLostError
from server.core.database.metric_and_log_tables import pack_blocks, packs
from server.scheduler.retention.rounds import Upkeep
from tests.server.harness import Harness


def test_what_fails_keeps_nothing_else_from_its_turn_and_has_another(
    context: Context, harness: Harness
) -> None:
    done: list[str] = []

    def fails() -> None:
        done.append("fails")
        raise OSError("the disk is full")

    upkeep = Upkeep(context, [fails, lambda: done.append("goes on")])
    for count in (1, 2):
        with pytest.raises(ExceptionGroup, match="have another turn") as raised:
            upkeep.run()
        assert [str(error) for error in raised.value.exceptions] == ["the disk is full"]
        upkeep.run()
        assert done == ["fails", "goes on"] * count
        harness.clock.advance(61)
    harness.clock.advance(-3600)
    with pytest.raises(ExceptionGroup):
        upkeep.run()


def test_a_former_leader_does_nothing_more(context: Context) -> None:
    done: list[str] = []

    def loses() -> None:
        raise LeadLostError

    with pytest.raises(LeadLostError):
        Upkeep(context, [loses, lambda: done.append("goes on")]).run()
    assert done == []


def test_an_upload_that_was_cut_off_goes_without_another_upload(
    context: Context, harness: Harness
) -> None:
    row = {"id": "p1", "size": 1, "created_by": "ada", "named_at": context.now()}
    with context.database.write() as connection:
        connection.execute(insert(packs).values(row))
        connection.execute(insert(pack_blocks).values(pack_id="p1", number=0, content=b"x"))
    upkeep = Upkeep(context)
    upkeep.run()
    harness.clock.advance(timedelta(hours=2).total_seconds())
    upkeep.run()
    with context.database.read() as connection:
        assert connection.scalars(select(packs.c.id)).all() == []
