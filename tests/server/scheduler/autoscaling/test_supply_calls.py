"""The scheduler sends calls to provisioners, and sends them again."""

from __future__ import annotations

import pytest

from server.cluster.supply.rows import ONLINE_FOR
from server.scheduler.rounds.dispatch import CelerySender
from tests.server.clock import FakeClock
from tests.server.cluster.supply.site import Site
from tests.server.scheduler.autoscaling.yard import Yard
from trainyard.protocol.node_sources.messages import SourceMessage


def test_submissions_are_repeated_at_growing_pauses(yard: Yard) -> None:
    yard.harness.submit(resources={"world_size": 4})
    yard.tick()
    yard.calls()
    times = []
    for second in range(100):
        yard.tick()
        if any(call == "submit" for call, _ in yard.calls()):
            times.append(second)
    assert len(times) == 4
    assert times[-1] - times[-2] > times[1] - times[0]


def test_the_queue_of_a_silent_provisioner_grows_slowly(
    yard: Yard, site: Site, clock: FakeClock
) -> None:
    request_id = site.running()
    site.withdraw(request_id)
    clock.advance(ONLINE_FOR.total_seconds() + 1)
    for _ in range(360):
        clock.advance(10)
        yard.keeper.run()
    calls = yard.calls()
    assert set(calls) == {("list", None), ("cancel", request_id)}
    assert len(calls) == 2 * 12  # each every five minutes of an hour
    yard.tick(60)  # it reports again
    assert ("cancel", request_id) in yard.calls()


def test_calls_that_something_waits_for_are_repeated(yard: Yard) -> None:
    assert yard.site is not None
    request_id = yard.site.ask(by_person=True)
    yard.site.claim(request_id)
    yard.site.describe(request_id, "pending")
    yard.tick()
    yard.calls()
    yard.site.report(asked=request_id, error="away")
    with yard.harness.context.database.write() as connection:
        connection.exec_driver_sql("UPDATE node_requests SET ask = 'explain'")
    yard.tick()
    assert ("explain", request_id) in yard.calls()
    yard.tick()
    assert ("explain", request_id) not in yard.calls()
    yard.tick(10)
    assert ("explain", request_id) in yard.calls()
    yard.site.report(asked=request_id, explanation="Priority")
    yard.tick(20)
    assert ("explain", request_id) not in yard.calls()


def test_an_end_that_is_near_is_looked_for_before_the_engine_forgets_it(yard: Yard) -> None:
    assert yard.site is not None
    request_id = yard.site.running()
    yard.tick()
    assert ("status", request_id) not in yard.calls()
    yard.site.describe(request_id, "completing")
    yard.tick()
    assert ("status", request_id) in yard.calls()
    yard.tick()
    assert ("status", request_id) not in yard.calls()
    yard.tick(10)
    assert ("status", request_id) in yard.calls()
    yard.site.describe(request_id, "ended", gone=True)
    yard.tick(20)
    assert ("status", request_id) not in yard.calls()


def test_a_call_goes_to_the_queue_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = CelerySender("memory://")
    sent: list[tuple[str, dict[str, object], str]] = []

    def send_task(name: str, *, kwargs: dict[str, object], queue: str, **_: object) -> None:
        sent.append((name, kwargs, queue))

    monkeypatch.setattr(sender.app, "send_task", send_task)
    sender.send(SourceMessage(source="slurm", call="list"))
    sender.close()
    kwargs = {"source": "slurm", "call": "list", "request_id": None}
    assert sent == [("provisioner.call", kwargs, "source.slurm")]
