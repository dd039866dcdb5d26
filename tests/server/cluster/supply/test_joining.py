"""Pilots join as nodes: one instance at a time, and only with the engine's name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select, update

from server.api.auth.service import revoke_token
from server.cluster.nodes.register import register
from server.cluster.supply.gone_nodes import HeldShare
from server.cluster.supply.joining import register_pilot, store_check
from server.cluster.supply.rows import ONLINE_FOR
from server.cluster.supply.service import delete_source
from server.core.context import Context
from server.core.database.source_tables import node_requests
from server.core.database.tables import nodes, tokens
from server.core.errors import ConflictError, ForbiddenError, NotNamedError, UnauthenticatedError
from server.jobs.attempts.finish import end_nodes
from server.jobs.attempts.node_heartbeat import node_heartbeat
from server.scheduler.autoscaling.end_shares import end_shares
from tests.actors import ADA, authenticate_token
from tests.server.clock import FakeClock
from tests.server.cluster.supply.site import Site, instance, join_token
from tests.server.harness import Harness
from tests.server.seen import list_nodes
from trainyard.protocol.node_sources.messages import CheckReport
from trainyard.protocol.states import AttemptNodeState
from trainyard.protocol.worker_messages import PROTOCOL, NodeHeartbeat
from trainyard.run.failures import FailureReason


def node(context: Context, name: str) -> Any:
    with context.database.read() as connection:
        return connection.execute(select(nodes).where(nodes.c.name == name)).one()


def test_a_pilot_becomes_a_node_of_its_source(site: Site, context: Context) -> None:
    request_id = site.running()
    end = datetime(2026, 1, 1, 5, tzinfo=UTC)
    site.describe(request_id, "running", nodes=[instance()], ends_at=end.timestamp())
    principal = site.join(request_id, labels={"rack": "r1"})
    name = f"slurm-{request_id}-0"
    assert principal.node == name
    row = node(context, name)
    assert (row.inbox, row.request_id, row.ends_at) == ("server", request_id, end)
    assert row.worker_labels == {"rack": "r1", "zone": "a", "source": "slurm"}
    later = end.timestamp() + 600
    site.describe(request_id, "running", nodes=[instance()], ends_at=later)
    assert node(context, name).ends_at.timestamp() == later
    beat = {
        "protocol": PROTOCOL,
        "node": name,
        "worker": {"folder": "0" * 32, "boot_id": "b007-0000"},
    }
    for ends_at, shown in ((later + 60, later + 60), (None, later + 60)):
        node_heartbeat(context, NodeHeartbeat.model_validate(beat | {"ends_at": ends_at}))
        (view,) = list_nodes(context)
        assert view.request_id == request_id
        assert view.ends_at is not None
        assert view.ends_at.timestamp() == shown
    for state, more, expected in (
        ("unknown", {}, later + 60),
        ("running", {"ends_at": later}, later),
        ("completing", {"ends_at": later - 60}, later),
    ):
        site.describe(request_id, state, nodes=[instance()], **more)
        assert node(context, name).ends_at.timestamp() == expected


def test_an_end_that_the_engine_removes_is_none(site: Site, context: Context) -> None:
    request_id = site.running()
    end = context.now().timestamp() + 3600
    site.describe(request_id, "running", nodes=[instance()], ends_at=end)
    site.join(request_id)
    name = f"slurm-{request_id}-0"
    assert node(context, name).ends_at.timestamp() == end
    site.describe(request_id, "running", nodes=[instance()])
    assert node(context, name).ends_at is None


def test_a_pilot_waits_until_the_engine_names_it(site: Site) -> None:
    request_id = site.ask()
    site.claim(request_id)
    with pytest.raises(NotNamedError, match="the engine names none"):
        site.join(request_id)
    assert site.request(request_id).ask == "status"
    site.describe(request_id, "running", nodes=[instance()])
    site.join(request_id)


def test_an_answer_that_was_lost_is_repeated(site: Site, context: Context) -> None:
    request_id = site.running()
    registration, secret = site.registration(request_id), site.secret(request_id)
    lost = register_pilot(context, registration, principal=secret, host=registration.address)
    second = site.join(request_id)
    assert lost.node_token is not None
    with pytest.raises(UnauthenticatedError):
        authenticate_token(context, lost.node_token)
    assert site.join(request_id, principal=second) == second


def test_the_secret_of_a_node_that_lives_replaces_nothing(
    site: Site, context: Context, clock: FakeClock
) -> None:
    """From the same address, with instance, data folder and boot of the joined pilot."""
    request_id = site.running()
    pilot = site.join(request_id)  # and uses its token
    clock.advance(seconds=1)
    before = node(context, f"slurm-{request_id}-0")
    with pytest.raises(ConflictError, match="has joined with this secret, and is online"):
        site.join(request_id)
    assert node(context, f"slurm-{request_id}-0") == before
    assert site.join(request_id, principal=pilot) == pilot  # its worker restarts


def test_an_instance_that_lost_its_token_joins_again_once_its_node_is_offline(
    site: Site, context: Context
) -> None:
    request_id = site.running()
    pilot = site.join(request_id)
    with context.database.write() as connection:
        connection.execute(update(nodes).values(offline_since=context.now()))
    assert site.join(request_id).token_id != pilot.token_id


def test_an_instance_whose_token_was_revoked_joins_again(site: Site, context: Context) -> None:
    request_id = site.running()
    pilot = site.join(request_id)
    assert pilot.token_id is not None
    revoke_token(context, pilot.token_id)
    assert site.join(request_id).token_id != pilot.token_id


def test_a_successor_joins_after_the_proof_alone(site: Site, context: Context) -> None:
    request_id = site.running()
    site.join(request_id)
    site.describe(request_id, "running", nodes=[instance(life=1)])
    with pytest.raises(NotNamedError, match="its end is not proved"):
        site.join(request_id, life=1)
    lives = [instance(gone=True), instance(life=1)]
    site.describe(request_id, "running", nodes=lives)
    name = f"slurm-{request_id}-0"
    assert node(context, name).offline_since is not None
    with pytest.raises(ConflictError, match=r"instance '4711\.0\.0' of this pilot has ended"):
        site.join(request_id)
    successor = site.join(request_id, life=1)
    assert successor.node == name
    assert node(context, name).offline_since is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"node": "slurm-1"}, "the pilot becomes node 'slurm-"),
        ({"host": "10.9.9.9"}, "calls from 10.9.9.9; slurm names 10.0.0.1"),
        ({"pilot": None}, "takes in that pilot alone"),
    ],
)
def test_a_secret_is_bound_to_its_pilot(site: Site, changes: dict[str, Any], why: str) -> None:
    request_id = site.running()
    with pytest.raises(ForbiddenError, match=why):
        site.join(request_id, **changes)


def test_neither_another_pilot_nor_a_join_token_joins(site: Site, context: Context) -> None:
    request_id, other = site.running(), site.running()
    principal = site.join(other)
    with pytest.raises(ForbiddenError, match="token of node"):
        site.join(request_id, principal=principal)
    joiner = authenticate_token(context, join_token(context))
    with pytest.raises(ForbiddenError, match="not by a join token"):
        site.join(request_id, principal=joiner)


def test_addresses_are_not_compared_behind_nat(context: Context) -> None:
    site = Site(context, check_addresses=False)
    site.join(site.running(), host="192.168.0.1")


@pytest.mark.parametrize(
    ("named", "host"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fd00::1", "fd00:0:0::1"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_an_address_in_another_form_is_the_same(site: Site, named: str, host: str) -> None:
    request_id = site.running()
    site.describe(request_id, "running", nodes=[instance(addresses=(named,))])
    with pytest.raises(ForbiddenError, match="calls from"):
        site.join(request_id, host="10.9.9.9")
    site.join(request_id, host=host)


@pytest.mark.parametrize("named", [(), ("c0.cluster",), ("0.0.0.0/0",)])
def test_no_client_joins_where_the_engine_names_no_address(
    site: Site, named: tuple[str, ...]
) -> None:
    request_id = site.ask()
    site.claim(request_id)
    site.describe(request_id, "running", nodes=[instance(addresses=named)])
    with pytest.raises(NotNamedError, match=r"names no address.*turn check_addresses"):
        site.join(request_id)
    assert site.request(request_id).ask == "status"
    site.describe(request_id, "running", nodes=[instance()])
    site.join(request_id)


def test_without_the_check_an_address_needs_no_name(context: Context) -> None:
    site = Site(context, check_addresses=False)
    request_id = site.ask()
    site.claim(request_id)
    site.describe(request_id, "running", nodes=[instance(addresses=())])
    site.join(request_id)


def test_the_name_of_a_pilot_is_taken_by_its_secret_alone(site: Site, context: Context) -> None:
    request_id = site.running()
    stranger = site.registration(request_id, pilot=None)
    with pytest.raises(ForbiddenError, match="is the name of a pilot"):
        register(context, stranger, principal=authenticate_token(context, join_token(context)))
    own = site.join(request_id)
    with pytest.raises(ForbiddenError, match="is the name of a pilot"):
        register(context, stranger, principal=own)
    assert node(context, f"slurm-{request_id}-0").request_id == request_id
    other = stranger.model_copy(update={"node": f"ssh-{request_id}-0"})
    register(context, other, principal=authenticate_token(context, join_token(context)))


def test_no_pilot_joins_a_request_that_is_over(site: Site) -> None:
    withdrawn, ended = site.running(), site.running()
    site.withdraw(withdrawn)
    site.describe(ended, "ended", gone=True)
    for request_id, why in ((withdrawn, "was withdrawn"), (ended, "has ended")):
        with pytest.raises(ConflictError, match=why):
            site.join(request_id)


def test_the_word_of_the_engine_ends_shares_at_once(
    site: Site, context: Context, harness: Harness
) -> None:
    request_id = site.running()
    principal = site.join(request_id)
    job_id = harness.submit()
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train()
    site.describe(request_id, "unknown")
    assert harness.shares(job_id)[0].state == AttemptNodeState.RUNNING
    site.describe(request_id, "ended", gone=True)
    attempt = harness.attempt(job_id)
    assert attempt.failure.reason == FailureReason.NODE_LOST
    assert harness.job(job_id).state == "queued"
    assert list_nodes(context) == []
    with context.database.read() as connection:
        revoked = select(tokens.c.revoked_at).where(tokens.c.id == principal.token_id)
        assert connection.scalar(revoked) is not None


def test_a_server_that_died_after_a_proof_ends_the_shares_later(
    site: Site, context: Context, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_id = site.running()
    site.join(request_id)
    job_id = harness.submit()
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train()

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("tests.server.cluster.supply.site.end_shares", die)
        with pytest.raises(Killed):
            site.describe(request_id, "ended", gone=True)
    assert harness.shares(job_id)[0].state == AttemptNodeState.RUNNING
    site.report(complete=True)
    assert harness.attempt(job_id).failure.reason == FailureReason.NODE_LOST
    assert harness.job(job_id).state == "queued"


def test_an_error_of_one_attempt_keeps_no_other_share(
    site: Site,
    context: Context,
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    request_id = site.running()
    site.join(request_id)
    bad, good = (harness.submit(resources={"world_size": 2}) for _ in range(2))
    assert harness.place() == 2
    for job_id in (bad, good):
        harness.claim_all(job_id)[0].train()
    attempt_id = harness.attempt(bad).id

    def fails(*arguments: Any, **more: Any) -> None:
        if attempt_id in arguments:
            raise RuntimeError("a bug")
        end_nodes(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr("server.scheduler.autoscaling.end_shares.end_nodes", fails)
        site.describe(request_id, "ended", gone=True)
    assert f"attempt {attempt_id} is left out" in caplog.text
    assert [harness.attempt(each).state for each in (bad, good)] == ["running", "ended"]
    site.report(complete=True)
    assert harness.attempt(bad).failure.reason == FailureReason.NODE_LOST


def test_a_successor_that_joins_at_once_keeps_its_shares(
    site: Site, context: Context, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_id = site.running()
    site.join(request_id)
    former = harness.submit(resources={"world_size": 2})
    assert harness.place() == 1
    harness.claim_all(former)[0].train()
    later: list[str] = []

    def join_first(context: Context, shares: Sequence[HeldShare]) -> None:
        site.join(request_id, life=1)
        later.append(harness.submit(resources={"world_size": 2}))
        assert harness.place() == 1
        harness.claim_all(later[0])[0].train()
        end_shares(context, shares)

    monkeypatch.setattr("tests.server.cluster.supply.site.end_shares", join_first)
    site.describe(request_id, "running", nodes=[instance(gone=True), instance(life=1)])
    assert harness.attempt(former).failure.reason == FailureReason.NODE_LOST
    assert [share.state for share in harness.shares(later[0])] == [AttemptNodeState.RUNNING]


def test_a_person_ends_what_a_provisioner_that_went_away_left(
    site: Site, context: Context, harness: Harness, clock: FakeClock
) -> None:
    request_id = site.running()
    site.join(request_id)
    job_id = harness.submit()
    assert harness.place() == 1
    clock.advance(ONLINE_FOR.total_seconds())
    with pytest.raises(ConflictError, match="cancel it"):
        site.end(request_id)
    clock.advance(1)
    assert site.end(request_id).state == "ended"
    assert harness.attempt(job_id).state == "ended"
    delete_source(context, "slurm", actor=ADA)


def test_a_person_ends_what_the_engine_forgot(site: Site, harness: Harness) -> None:
    request_id = site.running()
    site.join(request_id)
    job_id = harness.submit()
    assert harness.place() == 1
    with pytest.raises(ConflictError, match=r"has request .* as 'running': cancel it"):
        site.end(request_id)
    site.report(complete=True)
    assert site.end(request_id).state == "ended"
    assert harness.attempt(job_id).state == "ended"
    assert site.end(request_id).state == "ended"


def test_a_check_reports_once(site: Site, context: Context) -> None:
    request_id = site.running(purpose="check")
    with pytest.raises(ConflictError, match="is a check"):
        site.join(request_id)
    principal = site.secret(request_id)

    def send(detail: str, *, named: str = "4711.0.0", host: str = "10.0.0.1") -> None:
        found = {"name": "tls", "passed": True, "detail": detail}
        report = {
            "protocol": PROTOCOL,
            "pilot": {"request_id": request_id, "index": 0, "instance": named},
            "results": (found,),
        }
        store_check(context, CheckReport.model_validate(report), principal=principal, host=host)

    with pytest.raises(NotNamedError, match=r"names '4711\.0\.0', not '4711\.1\.0'"):
        send("of no pilot", named="4711.1.0")
    assert site.request(request_id).ask == "status"
    with pytest.raises(ForbiddenError, match=r"calls from 10\.9\.9\.9"):
        send("from another place", host="10.9.9.9")
    send("valid")
    send("again")
    (result,) = site.request(request_id).results or ()
    assert result.detail == "valid"
    with context.database.write() as connection:
        connection.execute(update(node_requests).values(purpose="nodes"))
    with pytest.raises(ConflictError, match="is no check"):
        send("late")
