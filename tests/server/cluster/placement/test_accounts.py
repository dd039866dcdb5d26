"""Nodes that run jobs under the Unix accounts of their owners: eligibility, reasons, answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select, update

from server.cluster.placement.demand import NO_ACCOUNT, Demand
from server.cluster.placement.fit import eligible_for, groups
from server.cluster.placement.reasons import why_operation_waits
from server.core.context import Context
from server.core.database.scheduler_tables import shown_reason
from server.core.database.tables import jobs, nodes
from server.core.people.user_tables import users
from server.core.subject import ADMIN_USER_ID
from server.jobs.attempts.claim import claim_all
from server.jobs.attempts.node_heartbeat import node_heartbeat
from server.jobs.queue.groups import demand_of_new, demand_of_shape, enter_groups
from server.jobs.queue.queries import NewJob
from tests.server.cluster.placement.cluster import offer
from tests.server.harness import WORKER, Harness
from trainyard.protocol.worker_messages import PROTOCOL, Claim, ClaimReply, NodeHeartbeat


def give_account(context: Context, account: str | None) -> None:
    """Map the owner of the harness's jobs, the built-in user, to a Unix account."""
    with context.database.write() as connection:
        mapped = update(users).where(users.c.id == ADMIN_USER_ID)
        connection.execute(mapped.values(unix_account=account))
        connection.execute(update(jobs).values(demand=None))  # as a change by an admin


def beat(context: Context, node: str = "gpu-3", **accounts: int | str) -> tuple[str, ...]:
    """Send a heartbeat with answers; return the accounts to look up."""
    heartbeat = NodeHeartbeat(protocol=PROTOCOL, node=node, worker=WORKER, accounts=accounts)
    named = node_heartbeat(context, heartbeat).accounts
    assert named is not None
    return named


def reason(context: Context, job_id: str) -> str:
    with context.database.read() as connection:
        found = connection.scalar(select(shown_reason).where(jobs.c.id == job_id))
    return str(found)


@pytest.fixture
def as_owner(context: Context, harness: Harness) -> Harness:
    """A server with one node, which runs jobs under the accounts of their owners."""
    harness.add_node("gpu-3")
    with context.database.write() as connection:
        connection.execute(update(nodes).values(accounts={}))
    return harness


def test_a_job_waits_until_its_owner_has_an_account_on_the_node(
    as_owner: Harness, context: Context
) -> None:
    job_id = as_owner.submit()
    assert as_owner.place() == 0
    assert reason(context, job_id) == (
        "needs 1 slot; no node that is online runs jobs of an owner without a Unix account; an "
        "admin sets it with `trainyard users change NAME --unix-account ACCOUNT`"
    )
    give_account(context, "ada")
    assert as_owner.place() == 0
    assert reason(context, job_id).endswith(
        "runs jobs under the account ada: ada is not looked up yet on gpu-3"
    )
    assert beat(context) == ("ada",)
    assert beat(context, ada="has no account") == ("ada",)
    assert as_owner.place() == 0
    assert reason(context, job_id).endswith("account ada: ada has no account on gpu-3")
    assert as_owner.job(job_id).attempt == 0, "nothing was launched"
    beat(context, ada=1001)
    assert as_owner.place() == 1
    attempt_id = as_owner.attempt(job_id).id
    claim = Claim(protocol=PROTOCOL, node="gpu-3", worker=WORKER, secret="s" * 43)
    (reply,) = claim_all(context, [(attempt_id, claim)])
    assert isinstance(reply, ClaimReply)
    assert reply.account == "ada"


def test_other_nodes_need_no_account_and_look_none_up(harness: Harness, context: Context) -> None:
    harness.add_node("gpu-3")
    give_account(context, "ada")
    job_id = harness.submit()
    heartbeat = NodeHeartbeat(protocol=PROTOCOL, node="gpu-3", worker=WORKER)
    assert "accounts" not in heartbeat.model_dump_json(), "a server of version 1.0 refuses it"
    reply = node_heartbeat(context, heartbeat)
    assert "accounts" not in reply.model_dump_json(), "a worker of version 1.0 refuses it"
    assert harness.place() == 1
    claim = Claim(protocol=PROTOCOL, node="gpu-3", worker=WORKER, secret="s" * 43)
    (granted,) = claim_all(context, [(harness.attempt(job_id).id, claim)])
    assert isinstance(granted, ClaimReply)
    assert "account" not in granted.model_dump_json()


def test_only_accounts_of_owners_with_jobs_are_looked_up(
    as_owner: Harness, context: Context
) -> None:
    give_account(context, "ada")
    assert beat(context) == ()
    as_owner.submit()
    assert beat(context) == ("ada",)


def test_a_set_of_nodes_runs_jobs_under_accounts_or_not() -> None:
    plain, owned = offer("a", 2), replace(offer("b", 2), accounts={"ada": 1001})
    demand = Demand(4, account="ada")
    assert eligible_for(demand, [plain, owned]) == [plain, owned]
    assert groups(demand, [plain, owned]) == [[plain], [owned]]


def test_a_build_needs_no_account() -> None:
    owned = replace(offer("b", 2), accounts={})
    assert eligible_for(Demand(0, account=NO_ACCOUNT), [owned]) == [owned]
    assert eligible_for(Demand(0), [owned]) == []


def test_an_operation_waits_for_the_account() -> None:
    refusing = [replace(offer(f"n{i}", 2), accounts={"ada": "has no account"}) for i in range(5)]
    why = why_operation_waits(Demand(0, account="ada"), [], [], offers=refusing)
    assert why == (
        "no node that is online runs jobs under the account ada: ada has no account on n0, n1, n2 "
        "and 2 others"
    )


def test_a_stored_demand_without_an_account_is_read() -> None:
    shape = '[1,null,"auto",["checkpoints"],null,[],[],[],[],0]'
    assert demand_of_shape(shape) == Demand(1)
    assert demand_of_shape(f'{shape[:-1]},"ada"]') == Demand(1, account="ada")


def test_nodes_with_different_ids_for_an_account_take_no_job_of_it(
    as_owner: Harness, context: Context
) -> None:
    as_owner.add_node("gpu-4")
    with context.database.write() as connection:
        connection.execute(update(nodes).values(accounts={}))
    give_account(context, "ada")
    job_id = as_owner.submit()
    beat(context, "gpu-3", ada=1001)
    beat(context, "gpu-4", ada=1002)
    assert as_owner.place() == 0
    assert reason(context, job_id).endswith(
        "account ada: ada has different user ids (1001 on gpu-3, 1002 on gpu-4) on gpu-3 and gpu-4"
    )
    beat(context, "gpu-4", ada=1001)
    assert as_owner.place() == 1


def test_a_job_that_got_another_account_meanwhile_enters_no_group(
    as_owner: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_account(context, "ada")
    job_id = as_owner.submit()

    def demand_then_change(row: NewJob) -> Demand:
        found = demand_of_new(row)
        give_account(context, "bob")  # as an admin, between the read and the write of the round
        return found

    with monkeypatch.context() as patch:
        patch.setattr("server.jobs.queue.groups.demand_of_new", demand_then_change)
        assert enter_groups(context) == frozenset()
    assert as_owner.job(job_id).demand is None
    assert enter_groups(context) == {job_id}
