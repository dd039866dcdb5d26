"""The plan of supply: no limit is exceeded, and no node is requested and released in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from server.cluster.placement.demand import Demand, Offer
from server.scheduler.autoscaling.supply_plan import (
    WITHDRAW_AFTER_SECONDS,
    NodeAsk,
    OpenNodeRequest,
    Supplier,
    SupplyPlan,
    UnmetJob,
    plan,
)
from tests.server.cluster.placement.cluster import ROOTS, offer
from trainyard.protocol.node_sources.messages import NodeShape

SHAPE = NodeShape(slots=4, device="cpu")


def supplier(name: str = "a", **more: Any) -> Supplier:
    settings = {
        "shape": SHAPE,
        "seconds": 3600.0,
        "requests_left": 4,
        "nodes_left": 16,
        "nodes_per_request": 8,
        "roots": ROOTS,
    } | more
    return Supplier(name, **settings)  # type: ignore[arg-type]


def waits(world_size: int, name: str = "tiny", **more: Any) -> UnmetJob:
    least = more.pop("least", None)
    smallest = None if least is None else Demand(least)
    return UnmetJob(name, Demand(world_size, **more), smallest)


def asked(request_id: str, coming: int, source: str = "a", **more: Any) -> OpenNodeRequest:
    return OpenNodeRequest(request_id, source, SHAPE, coming, roots=ROOTS, **more)


def decide(
    waiting: Sequence[UnmetJob],
    offers: Sequence[Offer] = (),
    *,
    freed: dict[str, Sequence[int]] | None = None,
    requests: Sequence[OpenNodeRequest] = (),
    suppliers: Sequence[Supplier] | None = None,
) -> SupplyPlan:
    chosen = [supplier()] if suppliers is None else suppliers
    return plan(waiting, offers, freed=freed or {}, requests=requests, suppliers=chosen)


def test_nothing_is_asked_for_what_fits() -> None:
    jobs = [waits(4)]
    assert not decide(jobs, [offer("n", 4)]).ask
    assert not decide(jobs, [offer("n", 4, 0)], freed={"n": [0, 1, 2, 3]}).ask
    assert not decide(jobs, requests=[asked("r", 1)]).ask
    assert decide(jobs, [offer("n", 4, 3)]).ask == [NodeAsk("a", 1, "tiny")]


def test_a_job_gets_the_nodes_that_it_lacks() -> None:
    assert decide([waits(8)], [offer("n", 4)]).ask == [NodeAsk("a", 1, "tiny")]
    assert decide([waits(8), waits(8)]).ask == [NodeAsk("a", 2, "tiny"), NodeAsk("a", 2, "tiny")]
    assert decide([waits(3), waits(1)]).ask == [NodeAsk("a", 1, "tiny")]
    four_nodes = waits(8, nodes=4)
    assert decide([four_nodes]).ask == [NodeAsk("a", 4, "tiny")]


def test_a_large_need_is_several_requests() -> None:
    few = supplier(nodes_per_request=2)
    asks = decide([waits(20)], suppliers=[few]).ask
    assert [each.nodes for each in asks] == [2, 2, 1]
    assert not decide([waits(40)], suppliers=[few]).ask  # five requests; no single one helps


def test_a_source_is_asked_that_has_what_a_job_needs() -> None:
    gpu = supplier("gpu", shape=NodeShape(slots=8, device="cuda", labels={"zone": "b"}))
    both = [supplier(), gpu]
    assert decide([waits(4, device="cuda")], suppliers=both).ask == [NodeAsk("gpu", 1, "tiny")]
    zone = waits(1, node_selector=(("zone", "b"),))
    assert decide([zone], suppliers=both).ask == [NodeAsk("gpu", 1, "tiny")]
    by_source = waits(1, node_selector=(("source", "a"),))
    assert decide([by_source], suppliers=both).ask == [NodeAsk("a", 1, "tiny")]
    assert not decide([waits(1, roots=("elsewhere",))], suppliers=both).ask
    assert not decide([waits(1, storage=("checkpoints", "uuid-2"))], suppliers=both).ask
    unseen = supplier(roots={})
    assert decide([waits(1, storage=("checkpoints", "uuid-2"))], suppliers=[unseen]).ask


def test_the_source_is_asked_whose_requests_start_soonest() -> None:
    slow, fast = supplier("a", wait_seconds=600.0), supplier("b", wait_seconds=60.0)
    assert decide([waits(1)], suppliers=[slow, fast]).ask == [NodeAsk("b", 1, "tiny")]
    full = supplier("b", wait_seconds=60.0, nodes_left=0)
    assert decide([waits(1)], suppliers=[slow, full]).ask == [NodeAsk("a", 1, "tiny")]


def test_an_elastic_job_asks_for_its_size_or_the_least_one() -> None:
    job = waits(16, least=4)
    assert decide([job]).ask == [NodeAsk("a", 4, "tiny")]
    small = supplier(nodes_left=2)
    assert decide([job], suppliers=[small]).ask == [NodeAsk("a", 1, "tiny")]
    assert not decide([job], [offer("n", 4)], suppliers=[small]).ask  # it starts there and grows


def test_node_hours_of_the_month_are_not_exceeded() -> None:
    left = supplier(node_seconds_left=3 * 3600.0)
    assert decide([waits(12)], suppliers=[left]).ask == [NodeAsk("a", 3, "tiny")]
    assert not decide([waits(16)], suppliers=[left]).ask
    endless = supplier(seconds=None, node_seconds_left=0.0)
    assert not decide([waits(1)], suppliers=[endless]).ask


def test_a_request_without_demand_is_given_up_after_a_while() -> None:
    young = asked("r", 1, unneeded_seconds=WITHDRAW_AFTER_SECONDS - 1)
    old = asked("r", 1, unneeded_seconds=WITHDRAW_AFTER_SECONDS)
    assert decide([], requests=[young]).give_up == []
    assert decide([], requests=[old]).give_up == ["r"]
    assert decide([waits(1)], requests=[old]).give_up == []
    by_person = asked("r", 1, by_person=True, unneeded_seconds=1e6)
    assert decide([], requests=[by_person]).give_up == []


def test_an_idle_request_is_released_unless_a_job_is_about_to_start_there() -> None:
    here = [Offer("n", "cpu", 4, (0, 1, 2, 3), ROOTS)]

    def runs(idle: float) -> OpenNodeRequest:
        more: dict[str, Any] = {"idle_seconds": idle, "idle_limit_seconds": 60.0}
        return asked("r", 0, joined=("n",), runs=True, by_person=True, **more)

    assert decide([], here, requests=[runs(59.0)]).give_up == []
    assert decide([], here, requests=[runs(60.0)]).give_up == ["r"]
    assert decide([waits(4)], here, requests=[runs(60.0)]).give_up == []
    busy = asked("r", 0, joined=("n",), runs=True, idle_limit_seconds=0.0)
    assert decide([], here, requests=[busy]).give_up == []


SIZES = st.integers(min_value=1, max_value=20)
SUPPLIERS = st.lists(
    st.builds(
        lambda slots, requests, nodes, per, hours, wait: {
            "shape": NodeShape(slots=slots, device="cpu"),
            "requests_left": requests,
            "nodes_left": nodes,
            "nodes_per_request": per,
            "node_seconds_left": hours,
            "wait_seconds": wait,
        },
        st.integers(1, 8),
        st.integers(0, 3),
        st.integers(0, 8),
        st.integers(1, 4),
        st.none() | st.floats(0, 40_000),
        st.floats(0, 1000),
    ),
    max_size=3,
).map(lambda found: [supplier(f"s{n}", **each) for n, each in enumerate(found)])
JOBS = st.lists(st.builds(waits, SIZES), max_size=8)
OFFERS = st.lists(st.integers(0, 4), max_size=4).map(
    lambda free: [offer(f"n{n}", 4, each) for n, each in enumerate(free)]
)


@settings(max_examples=100, deadline=None)
@given(jobs=JOBS, offers=OFFERS, suppliers=SUPPLIERS)
def test_limits_hold_and_plans_come_to_an_end(
    jobs: list[UnmetJob], offers: list[Offer], suppliers: list[Supplier]
) -> None:
    left = {each.name: each for each in suppliers}
    coming: list[OpenNodeRequest] = []
    for turn in range(len(jobs) + 1):
        planned = decide(jobs, offers, requests=coming, suppliers=[*left.values()])
        if not planned.ask:
            break
        for name, each in left.items():
            mine = [ask.nodes for ask in planned.ask if ask.source == name]
            total = sum(mine)
            assert total <= each.nodes_left
            assert len(mine) <= each.requests_left
            assert all(1 <= nodes <= each.nodes_per_request for nodes in mine)
            hours = each.node_seconds_left
            assert hours is None or total * 3600.0 <= hours
            for nodes in mine:
                left[name] = left[name].after(nodes)
        coming += [
            OpenNodeRequest(
                f"{turn}-{n}", ask.source, left[ask.source].shape, ask.nodes, roots=ROOTS
            )
            for n, ask in enumerate(planned.ask)
        ]
        # With one source each node is needed immediately. With several, an earlier job may prefer
        # nodes requested for a later one, also with a node that its own source could not supply.
        assert turn == 0 or len(suppliers) > 1
    assert not planned.ask
    if len(suppliers) == 1:
        assert planned.needed == {each.id for each in coming}  # this state releases none


@settings(max_examples=150, deadline=None)
@given(jobs=JOBS, offers=OFFERS, coming=st.lists(st.integers(1, 3), max_size=3))
def test_what_is_given_up_is_not_asked_for_again(
    jobs: list[UnmetJob], offers: list[Offer], coming: list[int]
) -> None:
    old = [
        asked(f"r{n}", nodes, unneeded_seconds=WITHDRAW_AFTER_SECONDS)
        for n, nodes in enumerate(coming)
    ]
    first = decide(jobs, offers, requests=old)
    kept = [each for each in old if each.id not in first.give_up]
    second = decide(jobs, offers, requests=kept)
    assert second.ask == first.ask
    assert second.give_up == []
