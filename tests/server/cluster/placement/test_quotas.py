"""Quotas in one decision: what counts, who waits, and who does not."""

from __future__ import annotations

from server.cluster.placement.decide import decide
from server.cluster.placement.demand import Demand, QueuedJob
from server.cluster.placement.quotas import Quota
from tests.server.cluster.placement.cluster import offer


def job(name: str, size: int, project: str = "vision") -> QueuedJob:
    return QueuedJob(name, name, Demand(size), project=project)


def test_what_starts_in_a_round_counts() -> None:
    queue = [job("a", 2), job("b", 2), job("c", 1), job("d", 8, "speech")]
    made = decide(queue, [offer("n", 16)], quotas={"vision": Quota(held=1, max_slots=4)})
    assert set(made.placed) == {"a", "d"}
    assert made.waiting == {
        "b": "project vision holds 3 of its 4 slots; needs 2",
        "c": "project vision holds 3 of its 4 slots; waits behind b",
    }
    assert set(made.over_quota) == {"b", "c"}


def test_a_job_that_waits_for_slots_has_its_part_of_the_quota() -> None:
    queue = [job("large", 4), job("same", 4), job("small", 1)]
    offers = [offer("n", 4, 2), offer("m", 1)]
    made = decide(queue, offers, quotas={"vision": Quota(max_slots=4)})
    assert made.placed == {}
    assert made.over_quota == {"same", "small"}
    assert made.waiting["same"] == (
        "project vision holds 0 of its 4 slots, 4 more are for its jobs ahead; needs 4"
    )


def test_a_job_that_no_node_could_hold_has_none() -> None:
    queue = [job("large", 9), job("small", 2)]
    made = decide(queue, [offer("n", 8)], quotas={"vision": Quota(max_slots=10)})
    assert set(made.placed) == {"small"}


def test_a_job_that_is_larger_than_the_quota_holds_up_no_other() -> None:
    queue = [job("large", 5), job("small", 2)]
    made = decide(queue, [offer("n", 8)], quotas={"vision": Quota(max_slots=4)})
    assert set(made.placed) == {"small"}
    assert made.waiting == {"large": "needs 5, and project vision may hold 4 slots"}


def test_nothing_starts_once_the_hours_are_used() -> None:
    queue = [job("a", 1), job("b", 1, "speech")]
    made = decide(queue, [offer("n", 8)], quotas={"vision": Quota(used_up="all is used")})
    assert set(made.placed) == {"b"}
    assert made.waiting == {"a": "all is used"}
