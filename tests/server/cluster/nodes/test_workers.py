"""One worker serves a node: who can register, and whose report ends an attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from server.api.auth.principals import Principal
from server.api.auth.service import create_token
from server.cluster.nodes.capacity import read_offers
from server.cluster.nodes.register import register
from server.cluster.nodes.workers import proves_gone
from server.core.context import Context
from server.core.database.tables import nodes
from server.core.errors import ConflictError
from server.core.leases import ServerUptime, is_recent, lease_expired
from server.core.liveness import beat
from server.jobs.attempts.node_heartbeat import node_heartbeat
from server.jobs.checkpoints.service import verify
from server.jobs.operations.service import claim_operation
from tests.actors import ADA, authenticate_token
from tests.server.claims import claim
from tests.server.harness import Harness
from trainyard.protocol.rest.access import TokenRequest
from trainyard.protocol.states import AttemptNodeState, JobState
from trainyard.protocol.worker_messages import (
    PROTOCOL,
    Hardware,
    Isolation,
    NodeHeartbeat,
    Registration,
    WorkerIdentity,
)
from trainyard.run.failures import FailureReason

NODE = "gpu-01"
FIRST = WorkerIdentity(folder="a" * 32, boot_id="b007-1111")
REBOOTED = FIRST.model_copy(update={"boot_id": "b007-2222"})
COPY = FIRST.model_copy(update={"folder": "c" * 32})
CLONE = REBOOTED
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEARTBEATS_OLD, LEASE = 31.0, 30.0
ONCE: dict[str, Any] = {"retry": {"max_retries": 1, "backoff_seconds": 0}}


class Site:
    """A server, and workers with the token of one node."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.context = harness.context
        token = create_token(self.context, TokenRequest(name="join", kind="join"))[1]
        beat(self.context)
        reply = self._register(FIRST, authenticate_token(self.context, token))
        assert reply.node_token is not None
        self.own = authenticate_token(self.context, reply.node_token)

    def register(self, worker: WorkerIdentity, *, isolation: Isolation = "none") -> None:
        """Register again, with the node's token."""
        self._register(worker, self.own, isolation=isolation)

    def beat(self, worker: WorkerIdentity, *gone: str) -> tuple[str, ...]:
        """Send a heartbeat, and return what the server expects to run."""
        heartbeat = NodeHeartbeat(protocol=PROTOCOL, node=NODE, worker=worker, gone=gone)
        return node_heartbeat(self.context, heartbeat).expected

    def _register(
        self, worker: WorkerIdentity, principal: Principal, *, isolation: Isolation = "none"
    ) -> Any:
        return register(
            self.context,
            Registration(
                protocol=PROTOCOL,
                node=NODE,
                address="gpu-01.test",
                hardware=Hardware(
                    device="cpu",
                    slots=4,
                    device_name="test",
                    device_memory_bytes=1,
                    cores=4,
                    memory_bytes=1,
                    isolation=isolation,
                ),
                roots={
                    name: f"0197cbf5-8d2e-7cc0-9d43-3a1f6a1f7b1{i}"
                    for i, name in enumerate(("checkpoints", "data"))
                },
                worker=worker,
                version="0",
            ),
            principal=principal,
        )


@pytest.fixture
def site(harness: Harness) -> Site:
    return Site(harness)


def test_answers_about_accounts_end_with_the_registration(site: Site, context: Context) -> None:
    for isolation, answers in (("owner", {}), ("user", None)):
        with context.database.write() as connection:
            connection.execute(update(nodes).values(accounts={"ada": 1001}))
        site.register(FIRST, isolation=isolation)  # type: ignore[arg-type]
        with context.database.read() as connection:
            (found,) = read_offers(connection)
        assert found.accounts == answers


def test_a_second_worker_with_a_copied_token_disturbs_nothing(
    site: Site, harness: Harness, context: Context
) -> None:
    job_id, (supervisor,) = harness.running(**ONCE)
    waiting = harness.submit()
    harness.place()
    attempt_id, unclaimed = harness.attempt(job_id).id, harness.attempt(waiting).id
    operation_id = verify(context, harness.commit_checkpoint(job_id, 1), actor=ADA)
    harness.keeper.run()
    before = harness.dump()
    for stranger in (COPY, CLONE):
        with pytest.raises(ConflictError, match="serves node 'gpu-01'"):
            site.register(stranger)
        with pytest.raises(ConflictError, match="registered by a worker"):
            site.beat(stranger, attempt_id)
        with pytest.raises(ConflictError, match="registered by a worker"):
            claim(context, unclaimed, node=NODE, worker=stranger)
        with pytest.raises(ConflictError, match="registered by a worker"):
            claim_operation(context, operation_id, node=NODE, worker=stranger)
    assert harness.dump() == before
    assert site.beat(FIRST) == (attempt_id,)
    supervisor.train(2)
    assert claim(context, unclaimed, node=NODE, worker=FIRST).node_rank == 0
    assert claim_operation(context, operation_id, node=NODE, worker=FIRST).fence == 1


def test_a_supervisor_that_reports_keeps_its_node_from_strangers(
    site: Site, harness: Harness
) -> None:
    job_id, (supervisor,) = harness.running(**ONCE)
    for _ in range(4):  # its worker has ended
        harness.reconcile(seconds=10)
        supervisor.train(2)
    for stranger in (COPY, CLONE):
        with pytest.raises(ConflictError, match="has a lease"):
            site.register(stranger)
    site.register(FIRST)
    assert site.beat(FIRST) == (harness.attempt(job_id).id,)


@pytest.mark.parametrize(
    ("stranger", "what"), [(COPY, "another data folder"), (CLONE, "another boot")]
)
def test_a_refused_worker_learns_when_it_can_register(
    site: Site, harness: Harness, stranger: WorkerIdentity, what: str
) -> None:
    _, (supervisor,) = harness.running(**ONCE)
    with pytest.raises(ConflictError) as by_heartbeat:
        site.register(stranger)
    assert str(by_heartbeat.value) == (
        f"a worker of {what} serves node 'gpu-01'; this one can register 30 s after that one's "
        "last heartbeat, or under another name"
    )
    for _ in range(4):
        harness.reconcile(seconds=10)
        supervisor.train(2)
    with pytest.raises(ConflictError) as by_lease:
        site.register(stranger)
    assert str(by_lease.value) == (
        f"an attempt that a worker of {what} launched on node 'gpu-01' has a lease; this one can "
        "register 30 s after its last report, or under another name"
    )


def test_a_claim_without_a_report_keeps_its_node_from_strangers(
    site: Site, harness: Harness
) -> None:
    harness.reconcile(seconds=20)
    harness.launched(**ONCE)
    harness.reconcile(seconds=15)
    with pytest.raises(ConflictError, match="has a lease"):
        site.register(COPY)
    harness.reconcile(seconds=LEASE + 1)
    site.register(COPY)


def test_a_share_that_has_ended_bars_no_worker(site: Site, harness: Harness) -> None:
    _, (supervisor,) = harness.running(**ONCE)
    harness.reconcile(seconds=HEARTBEATS_OLD - 1)
    supervisor.end("succeeded")
    harness.reconcile(seconds=1)
    site.register(COPY)


def test_the_leases_of_other_nodes_bar_no_worker(site: Site, harness: Harness) -> None:
    harness.reconcile(seconds=HEARTBEATS_OLD)
    harness.add_node("other", device="cuda")
    job_id, _ = harness.running(resources={"device": "cuda"})
    assert [share.node for share in harness.shares(job_id)] == ["other"]
    site.register(COPY)


def test_a_worker_of_another_boot_is_refused_with_the_reason(site: Site) -> None:
    with pytest.raises(ConflictError) as refused:
        site.beat(CLONE)
    assert str(refused.value) == (
        "node 'gpu-01' was registered by a worker with another data folder or after another "
        "boot; end one of the two, or register again"
    )


def test_a_worker_that_was_restarted_registers_at_once(site: Site, harness: Harness) -> None:
    harness.running()
    site.register(FIRST)
    harness.clock.advance(1)
    site.register(FIRST)


def test_a_machine_that_was_rebooted_is_back_after_its_leases(site: Site, harness: Harness) -> None:
    job_id, _ = harness.running(**ONCE)
    attempt_id = harness.attempt(job_id).id
    harness.reconcile(seconds=HEARTBEATS_OLD - 1)
    with pytest.raises(ConflictError, match=r"another boot .* 30 s after"):
        site.register(REBOOTED)
    harness.reconcile(seconds=2)
    site.register(REBOOTED)
    assert site.beat(REBOOTED, attempt_id) == ()
    assert harness.attempt(job_id).failure.reason == FailureReason.NODE_LOST
    assert harness.job(job_id).state == JobState.QUEUED
    assert harness.job(job_id).retries_used == 0


def test_a_lost_folder_proves_nothing(site: Site, harness: Harness) -> None:
    job_id, _ = harness.running(retry={"node_lost_after_seconds": 100})
    attempt_id = harness.attempt(job_id).id
    harness.reconcile(seconds=HEARTBEATS_OLD)
    site.register(COPY)
    assert site.beat(COPY, attempt_id) == (attempt_id,)
    assert harness.attempt(job_id).failure is None
    harness.reconcile(seconds=70)
    assert harness.attempt(job_id).failure.reason == FailureReason.NODE_LOST


def test_a_worker_that_was_replaced_while_it_was_silent_is_refused(
    site: Site, harness: Harness
) -> None:
    harness.reconcile(seconds=HEARTBEATS_OLD)
    site.register(COPY)
    with pytest.raises(ConflictError):
        site.beat(FIRST)
    with pytest.raises(ConflictError):
        site.register(FIRST)


def test_a_claim_whose_launch_died_ends_at_once(site: Site, harness: Harness) -> None:
    job_id, _ = harness.launched(**ONCE)
    attempt_id = harness.attempt(job_id).id
    assert site.beat(FIRST) == (attempt_id,)
    assert site.beat(FIRST, attempt_id) == ()
    assert harness.attempt(job_id).failure.reason == FailureReason.LAUNCH_ERROR
    assert harness.attempt(job_id).failure.node_at_fault
    assert harness.job(job_id).retries_used == 1
    site.beat(FIRST, attempt_id)  # again: nothing is left to end
    assert harness.job(job_id).state == JobState.QUEUED


def test_a_share_that_reports_is_never_ended_by_a_word(site: Site, harness: Harness) -> None:
    job_id, (supervisor,) = harness.running(**ONCE)
    attempt_id = harness.attempt(job_id).id
    for _ in range(4):
        harness.reconcile(seconds=LEASE - 1)
        assert site.beat(FIRST, attempt_id) == (attempt_id,)
        supervisor.train(2)
    harness.reconcile(seconds=LEASE + 1)
    assert site.beat(FIRST, attempt_id) == ()
    assert harness.shares(job_id)[0].state == AttemptNodeState.ENDED
    assert harness.attempt(job_id).failure.reason == FailureReason.LAUNCH_ERROR


@pytest.mark.parametrize(
    ("claimer", "sender", "reported", "expired", "proof"),
    [
        (FIRST, FIRST, False, False, True),
        (FIRST, FIRST, True, False, False),
        (FIRST, FIRST, True, True, True),
        (FIRST, REBOOTED, False, False, False),
        (FIRST, REBOOTED, True, False, False),
        (FIRST, REBOOTED, True, True, True),
        (FIRST, REBOOTED, False, True, True),
        (FIRST, COPY, False, False, False),
        (FIRST, COPY, True, True, False),
        (None, FIRST, False, True, False),
    ],
)
def test_what_proves_an_end(
    claimer: WorkerIdentity | None,
    sender: WorkerIdentity,
    reported: bool,
    expired: bool,
    proof: bool,
) -> None:
    assert proves_gone(claimer, sender, reported=reported, lease_expired=expired) is proof


@pytest.mark.parametrize(
    ("heard", "up", "expired"),
    [
        (-30, -100, False),
        (-30.001, -100, True),
        (-100, -30, False),
        (-100, -30.001, True),
        (-100, None, False),
        (5, -100, False),
        (60, -100, False),
        (60.001, -100, True),
        (60.001, -30, False),
    ],
)
def test_a_lease_counts_from_the_later_of_report_and_return(
    heard: float, up: float | None, expired: bool
) -> None:
    uptime = None if up is None else ServerUptime(NOW, up_since=NOW + timedelta(seconds=up))
    heard_at = NOW + timedelta(seconds=heard)
    assert lease_expired(heard_at, uptime, seconds=30) is expired


@pytest.mark.parametrize(
    ("age", "recent"), [(0, True), (30, True), (30.001, False), (-30, True), (-31, False)]
)
def test_a_heartbeat_from_the_future_bars_no_worker(age: float, recent: bool) -> None:
    assert is_recent(NOW - timedelta(seconds=age), NOW, seconds=30) is recent
