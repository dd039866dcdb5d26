"""Which attempts check the network between their nodes, and which checks count."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.auth.principals import Principal
from server.api.auth.tokens import TokenKind
from server.cluster.nodes.register import register
from server.core.context import Context
from server.core.database.rows import Node
from server.core.database.tables import nodes
from server.jobs.jobs.service import delete
from server.jobs.ranks.node_findings import CHECKED_FOR, unchecked_nodes
from tests.actors import ADA
from tests.server.harness import WORKER, Harness, Supervisor
from trainyard.protocol.worker_messages import PROTOCOL, Registration
from trainyard.run.directory import Phase
from trainyard.run.failures import FailureReason

TWO = {"world_size": 2}


@pytest.fixture(autouse=True)
def fabric(harness: Harness) -> None:
    """Two nodes of a slot each."""
    for name in ("node-1", "node-2"):
        harness.add_node(name, slots=1)


def checks(supervisors: list[Supervisor]) -> bool:
    """Return whether the ranks of an attempt check their network; all agree."""
    (ordered,) = {each.reply.attempt.check_network for each in supervisors}
    return ordered


def end(supervisors: list[Supervisor]) -> None:
    for each in supervisors:
        each.end("succeeded")


def test_nodes_are_checked_once_a_day(harness: Harness) -> None:
    _, first = harness.running(resources=TWO)
    assert checks(first)
    end(first)
    harness.clock.advance(CHECKED_FOR.total_seconds() - 1)
    _, second = harness.running(resources=TWO)
    assert not checks(second)
    end(second)
    harness.clock.advance(1)
    _, third = harness.launched(resources=TWO)
    assert checks(third), "steps without a check do not count as one"


def test_a_node_that_is_not_checked_has_the_others_check_again(harness: Harness) -> None:
    end(harness.running(resources=TWO)[1])
    harness.add_node("node-3", slots=1)
    _, three = harness.running(resources={"world_size": 3})
    assert checks(three)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.LOADING])
def test_an_attempt_counts_once_it_trains(harness: Harness, phase: Phase) -> None:
    _, supervisors = harness.launched(resources=TWO)
    for each in supervisors:
        each.report(phase=phase)
    end(supervisors)
    _, again = harness.launched(resources=TWO)
    assert checks(again)
    again[1].report(phase=Phase.TRAINING)
    end(again)
    assert not checks(harness.launched(resources=TWO)[1])


def test_nodes_are_checked_again_after_a_hang(harness: Harness) -> None:
    no_retry = {"max_retries": 0}
    hung, (first, other) = harness.running(resources=TWO, retry=no_retry)
    harness.clock.advance(60)
    first.end("failed", FailureReason.HANG)
    other.end("cancelled")
    delete(harness.context, hung, actor=ADA, checkpoints="keep")
    _, again = harness.running(resources=TWO)
    assert checks(again), "whatever is known of the attempt by now"
    harness.clock.advance(60)
    end(again)
    _, after = harness.launched(resources=TWO)
    assert not checks(after)
    end(after)


@pytest.mark.parametrize(
    ("resources", "reason"),
    [(TWO, FailureReason.TRAINER_ERROR), ({"world_size": 1}, FailureReason.HANG)],
    ids=["other reason", "one node"],
)
def test_no_other_failure_has_nodes_checked_again(
    harness: Harness, resources: dict[str, Any], reason: FailureReason
) -> None:
    end(harness.running(resources=TWO)[1])
    harness.clock.advance(60)
    _, (first, *others) = harness.running(resources=resources, retry={"max_retries": 0})
    first.end("failed", reason)
    for other in others:
        other.end("cancelled")
    assert not checks(harness.launched(resources=TWO)[1])


def test_an_attempt_on_one_node_neither_checks_nor_counts(harness: Harness) -> None:
    for supervisors in [harness.running()[1] for _ in range(2)]:
        assert not checks(supervisors)
        end(supervisors)
    assert checks(harness.launched(resources=TWO)[1])


@pytest.mark.parametrize(
    ("changed", "unchecked"),
    [
        ({}, set()),
        ({"address": "10.0.0.2"}, {"node-2"}),
        ({"worker": WORKER.model_copy(update={"boot_id": "b007-1111"})}, {"node-2"}),
    ],
    ids=["as before", "other address", "rebooted"],
)
def test_a_node_that_comes_back_otherwise_is_checked_again(
    harness: Harness, context: Context, changed: dict[str, Any], unchecked: set[str]
) -> None:
    end(harness.running(resources=TWO)[1])
    with context.database.read() as connection:
        found = Node.select().where(nodes.c.name == "node-2")
        before = Node.one_or_none(connection, found)
    assert before is not None
    harness.clock.advance(60)
    registration = Registration(
        protocol=PROTOCOL,
        node=before.name,
        address=before.address,
        hardware=before.hardware,
        roots={},
        worker=WORKER,
        version="0",
    ).model_copy(update=changed)
    principal = Principal("node-2", TokenKind.NODE, "token", node="node-2")
    register(context, registration, principal=principal)
    with context.database.read() as connection:
        assert unchecked_nodes(connection, {"node-1", "node-2"}, context.now()) == unchecked
