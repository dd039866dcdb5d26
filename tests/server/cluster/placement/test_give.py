"""The choice of a node for an operation."""

from __future__ import annotations

import dataclasses

from server.cluster.placement.demand import Demand
from server.cluster.placement.give import QueuedOperation, give
from tests.server.cluster.placement.cluster import offer


def test_an_operation_that_nodes_do_not_begin_tries_each_in_turn() -> None:
    offers = [offer("a", 4), offer("b", 4, free=1), offer("c", 4, free=2), offer("d", 4)]
    operation, tried = QueuedOperation("operation", Demand(world_size=0, roots=())), []
    for _ in range(5):
        given, _ = give([operation], offers, busy={"d"})
        tried.append(given["operation"])
        operation = dataclasses.replace(operation, unclaimed_by=tried[-1])
    assert tried == ["a", "b", "c", "a", "b"], "first the node with the fewest held slots"
    (alone,) = give([operation], offers[1:2], busy=())[0].values()
    assert alone == "b"


def test_an_operation_waits_for_a_busy_node_rather_than_for_one_that_did_not_begin_it() -> None:
    demand = Demand(world_size=0, roots=())
    offers = [offer("broken", 4), offer("busy", 4)]
    first = QueuedOperation("first", demand, unclaimed_by="broken")
    given, waiting = give([first], offers, busy={"busy"})
    assert (given, list(waiting)) == ({}, ["first"])
    given, _ = give([first, QueuedOperation("second", demand)], offers, busy=())
    assert given == {"first": "busy", "second": "broken"}
