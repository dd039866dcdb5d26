"""The scheduler requests nodes, releases them, and sends calls to provisioners."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, event, update

from server.cluster.nodes.changes import set_drain
from server.cluster.supply.changes import store_requests
from server.cluster.supply.rows import ONLINE_FOR, open_requests
from server.core.context import Context
from server.core.database.tables import nodes
from server.core.visibility.job_labels import label
from server.scheduler.autoscaling.keeper import roots_in_use
from tests.actors import ADA
from tests.server.clock import FakeClock
from tests.server.cluster.supply.site import Site, instance
from tests.server.harness import Harness
from tests.server.scheduler.autoscaling.yard import Yard, start, trained
from trainyard.protocol.node_sources.messages import NeedsLogin


def test_a_queued_job_causes_a_request_and_starts_on_its_nodes(yard: Yard) -> None:
    job_id = yard.harness.submit(resources={"world_size": 4})
    yard.tick()
    (request,) = yard.requests()
    assert (request.nodes, request.caused_by, request.state) == (
        1,
        label("default", "tiny"),
        "wanted",
    )
    assert yard.calls() == [("list", None), ("submit", request.id)]
    yard.tick()
    assert yard.calls() == []
    yard.tick(5)
    assert yard.calls() == [("submit", request.id)]  # the first may be lost
    start(yard, request.id)
    yard.tick()
    assert yard.harness.job(job_id).state == "starting"
    assert len(yard.requests()) == 1


def test_a_pending_request_is_withdrawn_within_a_minute(yard: Yard) -> None:
    assert yard.site is not None
    job_id = yard.harness.submit(resources={"world_size": 4})
    yard.tick()
    (request,) = yard.requests()
    yard.site.claim(request.id)
    yard.site.describe(request.id, "pending", reason="Priority")
    yard.tick(120)
    assert yard.site.request(request.id).state == "pending"
    yard.harness.add_node(slots=4)
    yard.tick()
    assert yard.harness.job(job_id).state == "starting"
    yard.calls()
    yard.tick(50)
    assert yard.site.request(request.id).state == "leaving"
    assert ("cancel", request.id) in yard.calls()
    yard.site.describe(request.id, "ended", gone=True)
    yard.tick(60)
    assert len(yard.requests()) == 1


def test_idle_nodes_are_released_and_take_no_work(yard: Yard, context: Context) -> None:
    assert yard.site is not None
    request, supervisor = trained(yard)
    yard.tick(120)
    assert yard.site.request(request.id).state == "running"
    supervisor.end("succeeded")
    yard.tick(50)
    assert yard.site.request(request.id).state == "running"
    yard.tick(30)
    assert yard.site.request(request.id).state == "leaving"
    yard.harness.submit(resources={"world_size": 4})
    yard.tick()
    assert [each.state for each in yard.requests()] == ["leaving", "wanted"]


def test_a_silent_node_that_holds_an_attempt_is_not_released(yard: Yard) -> None:
    assert yard.site is not None
    job_id = yard.harness.submit(resources={"world_size": 4})
    yard.tick()
    (request,) = yard.requests()
    node = start(yard, request.id)
    yard.tick()
    yard.harness.claim_all(job_id)[0].train()
    context = yard.harness.context
    with context.database.write() as connection:
        silent = update(nodes).where(nodes.c.name == node)
        connection.execute(silent.values(offline_since=context.now()))
    yard.tick(300)
    assert yard.site.request(request.id).state == "running"


@pytest.mark.parametrize("state", ["running", "pending"])
def test_an_allocation_whose_attempts_have_left_ends_at_once(
    yard: Yard, clock: FakeClock, state: str
) -> None:
    assert yard.site is not None
    request, supervisor = trained(yard)
    end = clock.now().timestamp() + 110  # leave_seconds=120
    yard.site.describe(request.id, "running", nodes=[instance()], ends_at=end)
    yard.tick(5)
    row = yard.site.request(request.id)
    assert (row.state, row.cancel_at) == ("leaving", None)
    if state == "pending":  # a preemption at the same time has requeued it
        yard.site.describe(request.id, state)
    supervisor.end("stopped")
    yard.tick()
    assert yard.site.request(request.id).cancel_at is not None


def test_a_node_of_an_allocation_that_completes_is_not_awaited(yard: Yard) -> None:
    assert yard.site is not None
    job_id = yard.harness.submit(resources={"world_size": 4})
    yard.tick()
    (request,) = yard.requests()
    start(yard, request.id)
    yard.tick()
    yard.harness.claim_all(job_id)
    site = yard.site
    site.describe(request.id, "completing", nodes=[instance(gone=True), instance(life=1)])
    yard.tick(60)  # the pause before the retry of a launch
    assert [each.state for each in yard.requests()] == ["running", "wanted"]


def test_a_requeued_allocation_without_work_is_kept_for_half_a_minute(yard: Yard) -> None:
    assert yard.site is not None
    request, supervisor = trained(yard)
    yard.tick(300)
    supervisor.end("succeeded")
    yard.site.describe(request.id, "completing", nodes=[instance(gone=True)])
    yard.tick(120)
    row = yard.site.request(request.id)
    assert (row.state, row.cancel_at) == ("running", None)  # idle, but a cancel ends the requeue
    yard.site.describe(request.id, "pending", reason="BeginTime")
    yard.tick(20)
    assert yard.site.request(request.id).state == "pending"
    yard.tick(20)
    assert yard.site.request(request.id).state == "leaving"


def test_an_idle_allocation_near_its_end_is_released_at_once(yard: Yard, clock: FakeClock) -> None:
    assert yard.site is not None
    request_id = yard.site.running()
    yard.site.join(request_id)
    end = clock.now().timestamp() + 300  # nothing new is placed there
    yard.site.describe(request_id, "running", nodes=[instance()], ends_at=end)
    yard.tick(2)
    row = yard.site.request(request_id)
    assert (row.state, row.reason) == ("leaving", "idle")


def test_a_node_that_does_not_join_in_time_is_replaced(yard: Yard) -> None:
    assert yard.site is not None
    yard.harness.submit(resources={"world_size": 8}, training={"micro_batch_size": 2})
    yard.tick()
    (request,) = yard.requests()
    yard.site.claim(request.id)
    yard.site.describe(request.id, "running", nodes=[instance(0), instance(1)])
    yard.site.join(request.id)
    yard.tick(590)
    assert [each.nodes for each in yard.requests()] == [2]
    yard.tick(20)
    assert [each.nodes for each in yard.requests()] == [2, 1]
    yard.tick(100)
    assert [(each.nodes, each.state) for each in yard.requests()] == [(2, "running"), (1, "wanted")]


@pytest.mark.parametrize("successor", [False, True], ids=["none", "named"])
def test_a_node_that_is_gone_is_awaited_if_it_has_a_successor(
    yard: Yard, *, successor: bool
) -> None:
    assert yard.site is not None
    job_id = yard.harness.submit(resources={"world_size": 4})
    yard.tick()
    (request,) = yard.requests()
    start(yard, request.id)
    yard.tick()
    yard.harness.claim_all(job_id)
    lives = [instance(gone=True)] + ([instance(life=1)] if successor else [])
    yard.site.describe(request.id, "running", nodes=lives)
    yard.tick()
    assert yard.harness.job(job_id).state == "queued"
    yard.tick(60)  # the pause before the retry of a launch
    assert len(yard.requests()) == (1 if successor else 2)


def test_a_source_that_cannot_be_asked_is_not(yard: Yard, clock: FakeClock) -> None:
    assert yard.site is not None
    yard.harness.submit(resources={"world_size": 4})
    site, yard.site = yard.site, None
    needs = NeedsLogin(reason="expired", command="ssh login")
    site.report(error="Permission denied", needs_login=needs)
    yard.tick()
    assert yard.requests() == []
    site.report(complete=True)
    clock.advance(ONLINE_FOR.total_seconds() + 1)
    yard.tick()
    assert yard.requests() == []
    assert site.told("source_changed")[-1] == "the provisioner of slurm is silent"
    site.report(complete=True, needs_login=needs)  # the other machines can be requested
    assert site.told("source_changed")[-1] == "source slurm needs a login: expired"
    site.report(error="Permission denied", needs_login=needs)  # a call to one of them
    yard.tick()
    assert len(yard.requests()) == 1


def test_attempts_leave_before_the_allocation_ends(yard: Yard, clock: FakeClock) -> None:
    assert yard.site is not None
    job_id = yard.harness.submit(resources={"world_size": 4})
    yard.tick()
    (request,) = yard.requests()
    start(yard, request.id)
    yard.tick()
    (supervisor,) = yard.harness.claim_all(job_id)
    supervisor.train()
    end = clock.now().timestamp() + 1000
    yard.site.describe(request.id, "running", nodes=[instance()], ends_at=end)
    yard.tick(860)  # leave_seconds=120: 140 s are left
    assert yard.harness.attempt(job_id).desired == "run"
    other = yard.harness.submit(resources={"world_size": 1, "priority": 100})
    yard.tick(25)
    assert yard.harness.attempt(job_id).desired == "stop"
    row = yard.site.request(request.id)
    assert (row.state, row.cancel_at) == ("leaving", None)
    assert row.reason.startswith("its allocation ends at ")
    assert yard.harness.job(other).state == "queued"


@pytest.mark.parametrize("moved", [3600.0, None], ids=["later", "none"])
def test_an_end_that_moves_away_brings_the_nodes_back(
    yard: Yard, clock: FakeClock, moved: float | None
) -> None:
    assert yard.site is not None
    site = yard.site
    request_id = site.running()
    site.join(request_id)

    def ends_in(seconds: float | None) -> None:
        end = None if seconds is None else clock.now().timestamp() + seconds
        site.describe(request_id, "running", nodes=[instance()], ends_at=end)

    job_id = yard.harness.submit(resources={"world_size": 4})
    ends_in(300)  # leave_seconds=120, and a start takes minutes
    yard.leaving.run()
    yard.harness.place()
    assert yard.harness.job(job_id).state == "queued"
    ends_in(moved)
    yard.tick()
    assert yard.harness.job(job_id).state == "starting"


def test_an_end_that_moves_away_ends_no_other_drain(yard: Yard, clock: FakeClock) -> None:
    assert yard.site is not None
    request_id = yard.site.running()
    yard.site.join(request_id)
    node = f"slurm-{request_id}-0"
    set_drain(yard.harness.context, node, "finish", actor=ADA, reasons=("a repair",))
    end = clock.now().timestamp() + 3600
    yard.site.describe(request_id, "running", nodes=[instance()], ends_at=end)
    job_id = yard.harness.submit(resources={"world_size": 4})
    yard.tick(5)
    assert yard.harness.job(job_id).state == "queued"


def test_without_a_source_a_look_is_one_query(harness: Harness, context: Context) -> None:
    yard = Yard(harness)
    yard.keeper.run()  # it tidies up, once a minute
    harness.clock.advance(1)
    executed: list[str] = []

    def note(*args: object) -> None:
        executed.append(str(args[2]))

    engine: Engine = context.database.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        assert yard.keeper.run() == 0
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert len([each for each in executed if each.startswith("SELECT")]) == 1


def test_an_error_of_one_source_keeps_no_other_from_its_turn(
    yard: Yard, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Site(site.context, name="a", shape={"slots": 4, "device": "cpu", "labels": {"bad": "1"}})
    selected = {"world_size": 4, "node_selector": {"bad": "1"}}
    yard.harness.submit(resources=selected)
    yard.harness.submit(resources={"world_size": 4, "node_selector": {"zone": "a"}})

    def store(*arguments: Any, **more: Any) -> list[str]:
        if arguments[2].name == "a":
            raise RuntimeError("a bug")
        return store_requests(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr("server.scheduler.autoscaling.keeper.store_requests", store)
        yard.tick(10)
        assert [each.state for each in yard.requests()] == ["wanted"]
        assert ("list", None) in yard.calls()
    bad.report()
    yard.tick(40)
    with site.context.database.read() as connection:
        assert len(open_requests(connection, "a")) == 1


def test_the_newest_nodes_show_the_storage_that_is_in_use(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.scheduler.autoscaling.keeper.SHOW_STORAGE", 2)
    for number, root in enumerate(("old", "data", "data")):
        harness.add_node(f"n{number}", roots={root: f"{number:08d}-98a5-4f5f-9a51-0d6f9a3a7a10"})
        harness.clock.advance(1)
    with context.database.read() as connection:
        assert roots_in_use(connection) == {"data": "00000002-98a5-4f5f-9a51-0d6f9a3a7a10"}
