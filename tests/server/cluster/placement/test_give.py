"""Which node an operation is given to."""

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
