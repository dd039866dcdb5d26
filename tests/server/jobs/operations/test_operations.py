"""The life of an operation: sent to one node at a time, claimed once, replaced after silence."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from server.cluster.placement.demand import Demand, Offer
from server.cluster.placement.give import QueuedOperation, give
from server.core.context import Context
from server.core.errors import ConflictError, NotFoundError
from server.core.lifecycle import Move, operation_to
from server.core.liveness import beat
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.attempts.parent import parent_checkpoint
from server.jobs.checkpoints import guards, service
from server.jobs.operations.cancel import cancel
from server.scheduler.rounds import operations as keeper
from tests.actors import ADA, EVE
from tests.server.harness import Harness
from tests.server.yard import Yard
from trainyard.protocol.operations import OperationKind, OperationOutcome
from trainyard.protocol.rest.checkpoints import SampleRequest
from trainyard.protocol.states import OperationState
from trainyard.run.checkpoint_faults import CheckpointFault

DONE = OperationOutcome(outcome="succeeded", message="done")


def saved(yard: Yard, *steps: int) -> tuple[str, list[str]]:
    """Return a running job and the ids of its checkpoints."""
    job_id, _ = yard.harness.running(step=9)
    return job_id, [yard.harness.commit_checkpoint(job_id, step) for step in steps]


def test_a_verification_from_the_request_to_the_catalog(yard: Yard, context: Context) -> None:
    job_id, (checkpoint,) = saved(yard, 4)
    operation_id = service.verify(context, checkpoint, actor=ADA)
    assert yard.give() == [(operation_id, "node-1")]
    reply = yard.claim(operation_id)
    assert reply.task.kind == OperationKind.VERIFY
    assert reply.task.checkpoint is not None
    assert reply.task.checkpoint.metadata_digest == "m" * 32
    assert (reply.storage, reply.fence) == ("root-1", 1)
    yard.report(operation_id, done=5)
    progress = yard.operation(operation_id).progress
    assert progress is not None
    assert progress.done == 5
    (first,) = yard.noticed(job_id, "operation_progress")
    yard.report(operation_id, done=5)  # unchanged, so it makes no notice
    assert yard.noticed(job_id, "operation_progress") == [first]

    assert yard.report(operation_id, outcome=DONE).ended
    assert yard.noticed(job_id, "operation_progress") == []
    view = yard.operation(operation_id)
    assert (view.state, view.tries, view.actor) == (OperationState.SUCCEEDED, 1, "ada")
    assert yard.harness.kinds(job_id)[-3:] == [
        "operation_queued",
        "operation_started",
        "operation_ended",
    ]


def test_what_was_found_stands_in_the_catalog(yard: Yard, context: Context) -> None:
    job_id, (checkpoint,) = saved(yard, 4)
    yard.do(service.verify(context, checkpoint, actor=ADA))
    row = yard.checkpoints(job_id)[checkpoint]
    assert row.verified is True
    assert (row.verification.loaded_on, row.checked_at) == (2, context.now())


def test_a_damaged_checkpoint_is_named_and_passed_over(yard: Yard, context: Context) -> None:
    job_id, (older, newer) = saved(yard, 4, 8)
    yard.do(service.verify(context, newer, actor=ADA), fault=CheckpointFault.FILE_DAMAGED)
    found = yard.checkpoints(job_id)[newer].verification
    assert (found.ok, found.fault) == (False, CheckpointFault.FILE_DAMAGED)
    assert yard.said(job_id, "operation_ended")[-1].data["ok"] is False
    with context.database.read() as connection:
        newest = parent_checkpoint(connection, job_id)
    assert newest.id == older


def test_a_repeat_is_the_same_operation_until_it_has_ended(yard: Yard, context: Context) -> None:
    _, (checkpoint,) = saved(yard, 4)
    first = service.verify(context, checkpoint, actor=ADA)
    assert service.verify(context, checkpoint, actor=EVE) == first
    yard.do(first)
    assert service.verify(context, checkpoint, actor=EVE) != first


def test_a_node_has_one_operation_at_a_time(yard: Yard, context: Context) -> None:
    _, (one, two) = saved(yard, 4, 8)
    first = service.verify(context, one, actor=ADA)
    yard.harness.clock.advance(1)
    second = service.verify(context, two, actor=ADA)
    assert yard.give() == [(first, "node-1")]
    assert yard.give() == []  # the first is not claimed yet
    yard.claim(first)
    assert yard.give() == []
    yard.report(first, outcome=DONE)
    assert yard.give() == [(second, "node-1")]


def test_a_message_is_sent_again_then_another_node_is_tried(yard: Yard, context: Context) -> None:
    _, (checkpoint,) = saved(yard, 4)
    operation_id = service.verify(context, checkpoint, actor=ADA)
    assert yard.give() == [(operation_id, "node-1")]
    yard.harness.clock.advance(context.settings.resend_seconds)
    assert yard.give() == [(operation_id, "node-1")]
    yard.harness.clock.advance(context.settings.claim_seconds)
    yard.harness.add_node("node-2")  # holds no slots, so it is the quieter one
    assert yard.give() == [(operation_id, "node-2")]
    with pytest.raises(ConflictError, match="node-1 cannot claim it"):
        yard.claim(operation_id, "node-1")
    assert yard.claim(operation_id, "node-2").fence == 1


def test_only_the_first_claim_counts(yard: Yard, context: Context) -> None:
    _, (checkpoint,) = saved(yard, 4)
    operation_id = service.verify(context, checkpoint, actor=ADA)
    with pytest.raises(ConflictError, match="node-1 cannot claim it"):
        yard.claim(operation_id)  # a message that somebody wrote by hand
    yard.give()
    yard.claim(operation_id)
    with pytest.raises(ConflictError, match="is running"):
        yard.claim(operation_id)
    with pytest.raises(NotFoundError):
        yard.claim("0" * 26)


def test_a_silent_node_is_outrun_by_the_next_claim(yard: Yard, context: Context) -> None:
    _, (checkpoint,) = saved(yard, 4)
    operation_id = service.verify(context, checkpoint, actor=ADA)
    for fence in (1, 2, 3):
        assert yard.give() == [(operation_id, "node-1")]
        assert yard.claim(operation_id).fence == fence
        silence(yard.harness)
        if fence < 3:
            yard.harness.keeper._judge(context.now())
            assert yard.operation(operation_id).state == OperationState.QUEUED
            with pytest.raises(ConflictError, match="no longer"):
                yard.report(operation_id, fence=fence, outcome=DONE)
    yard.give()
    view = yard.operation(operation_id)
    assert (view.state, view.tries) == (OperationState.FAILED, 3)
    with pytest.raises(ConflictError, match="no longer"):
        yard.report(operation_id, fence=3, outcome=DONE)


def test_an_error_of_one_operation_keeps_no_other_on_a_silent_node(
    yard: Yard, context: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, checkpoints = saved(yard, 4, 8)
    yard.harness.add_node("node-2")
    broken, other = [service.verify(context, each, actor=ADA) for each in checkpoints]
    for operation_id, node in yard.give():
        yard.claim(operation_id, node)

    def fails(operation_id: str, target: OperationState, **values: Any) -> Move:
        if operation_id == broken:
            raise ValueError("of one operation alone")
        return operation_to(operation_id, target, **values)

    monkeypatch.setattr(keeper, "operation_to", fails)
    silence(yard.harness)
    yard.give()
    states = [yard.operation(each).state for each in (broken, other)]
    assert states == [OperationState.RUNNING, OperationState.QUEUED]
    assert f"operation {broken} is left out" in caplog.text


def test_a_superseded_supervisor_is_refused_while_the_next_one_works(
    yard: Yard, context: Context
) -> None:
    _, (checkpoint,) = saved(yard, 4)
    operation_id = service.verify(context, checkpoint, actor=ADA)
    yard.give()
    yard.claim(operation_id)
    silence(yard.harness)
    assert yard.give() == [(operation_id, "node-1")]
    yard.claim(operation_id)
    with pytest.raises(ConflictError):
        yard.report(operation_id, fence=1, done=1)
    yard.report(operation_id, fence=2, outcome=DONE)


def test_nothing_is_judged_while_no_server_could_hear(yard: Yard, context: Context) -> None:
    _, (checkpoint,) = saved(yard, 4)
    operation_id = service.verify(context, checkpoint, actor=ADA)
    yard.give()
    yard.claim(operation_id)
    yard.harness.clock.advance(10 * context.settings.lease_seconds)
    yard.give()
    beat(context)  # after a gap: every lease has a full period again
    yard.give()
    assert yard.operation(operation_id).state == OperationState.RUNNING


def test_a_report_renews_the_lease(yard: Yard, context: Context) -> None:
    _, (checkpoint,) = saved(yard, 4)
    operation_id = service.verify(context, checkpoint, actor=ADA)
    yard.give()
    yard.claim(operation_id)
    for _ in range(4):
        silence(yard.harness, share=0.5)
        yard.report(operation_id)
        yard.give()
    assert yard.operation(operation_id).state == OperationState.RUNNING


def silence(harness: Harness, *, share: float = 1.1) -> None:
    """Let a lease's period, or a share of it, pass while servers are up."""
    for _ in range(int(harness.context.settings.lease_seconds * share)):
        harness.clock.advance(1)
        beat(harness.context)


# ---- the choice of a node -----------------------------------------------------------------------


def offer(node: str, *, free: int = 4, **roots: str) -> Offer:
    return Offer(
        node=node,
        device="cpu",
        slots=4,
        free=tuple(range(free)),
        roots=roots or {"checkpoints": "one"},
        holders={},
    )


def wanted(
    name: str, *more_roots: str, storage: str | None = "one", needs_idle_node: bool = False
) -> QueuedOperation:
    held = None if storage is None else ("checkpoints", storage)
    demand = Demand(0, roots=("checkpoints", *more_roots), storage=held)
    return QueuedOperation(name, demand, needs_idle_node)


def test_the_quietest_node_that_sees_the_storage_is_chosen() -> None:
    offers = [
        offer("busy", free=0),
        offer("stranger", checkpoints="two"),
        offer("bare", data="one"),
        offer("quiet"),
    ]
    two, _ = give([wanted("a"), wanted("b")], offers, frozenset())
    assert two == {"a": "quiet", "b": "busy"}
    assert give([wanted("a")], offers, {"quiet", "busy"})[0] == {}
    any_storage, _ = give([wanted("a", storage=None)], offers, {"quiet"})
    assert any_storage == {"a": "stranger"}


def test_a_sample_goes_first_and_a_scrub_last(yard: Yard, context: Context) -> None:
    _, (checkpoint,) = saved(yard, 4)
    order = []
    for kind in (OperationKind.SCRUB, OperationKind.VERIFY):
        with context.database.write() as connection:
            job, row = guards.locked_to_stay(connection, checkpoint, scope=SYSTEM_SCOPE)
            order.append(
                service.queue_on(context, connection, job=job, checkpoint=row, kind=kind, actor=ADA)
            )
        yard.harness.clock.advance(1)
    order.append(service.sample(context, checkpoint, SampleRequest(), actor=ADA))
    with context.database.read() as connection:
        queue = yard.harness.keeper._queue(connection, context.now())
    scrub, verify, sample = order
    assert [row.id for row in queue] == [sample, verify, scrub]


def test_a_scrub_waits_for_an_idle_node_and_delays_no_other() -> None:
    queue = [wanted("scrub", needs_idle_node=True), wanted("verify")]
    assert give(queue, [offer("half", free=2)], frozenset())[0] == {"verify": "half"}
    assert give(queue, [offer("idle")], frozenset())[0] == {"scrub": "idle"}


@pytest.mark.parametrize(
    ("operation", "offers", "reason"),
    [
        (wanted("a"), [], "no node is online that takes new work"),
        (
            wanted("a"),
            [offer("a", data="one")],
            "no node that is online sees the root checkpoints",
        ),
        (
            wanted("a"),
            [offer("a", checkpoints="two")],
            "no node that is online sees its checkpoints",
        ),
        (
            wanted("a", "data", "out"),
            [offer("a"), offer("b", data="x", out="y")],
            "no node that is online sees the roots checkpoints, data, out",
        ),
        (
            wanted("a", needs_idle_node=True),
            [offer("a", free=2)],
            "waits until no slot is held on a",
        ),
        (wanted("a"), [offer("a")], "waits for a, which has another operation"),
        (
            wanted("a"),
            [offer(node) for node in "edcba"],
            "waits for a, b, c or 2 others, which have another operation",
        ),
    ],
)
def test_a_waiting_operation_has_a_reason(
    operation: QueuedOperation, offers: list[Offer], reason: str
) -> None:
    busy = frozenset(offer.node for offer in offers)
    assert give([operation], offers, busy)[1] == {"a": reason}


def test_the_reason_is_stored_once_and_ends_with_the_waiting(yard: Yard, context: Context) -> None:
    job_id, (one, two) = saved(yard, 4, 8)
    first = service.verify(context, one, actor=ADA)
    yard.harness.clock.advance(1)
    second = service.verify(context, two, actor=ADA)
    assert yard.operation(second).waiting is None, "no round has placed it yet"
    yard.give()
    yard.give()
    assert yard.operation(first).waiting == "was given to node-1, which has not started it yet"
    assert yard.operation(second).waiting == "waits for node-1, which has another operation"
    told = yard.noticed(job_id, "operation_waiting")
    assert [notice.data["operation_id"] for notice in told] == [second, first]
    yard.claim(first)
    assert yard.operation(first).waiting is None


def test_an_unreadable_task_keeps_no_other_operation_from_its_node(
    yard: Yard, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    _, (one, two) = saved(yard, 4, 8)
    broken = service.verify(context, one, actor=ADA)
    yard.harness.clock.advance(1)
    whole = service.verify(context, two, actor=ADA)
    with context.database.write() as connection:
        connection.execute(
            text("UPDATE operations SET task = :task WHERE id = :id"),
            {"task": '{"kind": "verify", "of_a_later_version": 1}', "id": broken},
        )
    assert yard.give() == [(whole, "node-1")]
    yard.give()
    assert "of_a_later_version" in (yard.operation(broken).waiting or "")
    assert caplog.text.count(f"the stored task of operation {broken} cannot be read") == 1
    cancel(context, broken, actor=ADA)
    assert yard.operation(broken).state == OperationState.CANCELLED
