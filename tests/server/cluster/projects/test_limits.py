"""Limits of users: which jobs wait, and which groups they form."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event

from server.cluster.membership.service import remove_member
from server.cluster.projects.quotas import read_quotas
from server.core.context import Context
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import cancel
from server.jobs.owners.service import transfer
from server.jobs.queue import heads
from tests.actors import ADA, ADMIN
from tests.server.harness import Harness
from tests.server.members import OURS, add_projects
from tests.server.user_limits import act_as, limit, limit_own, submit_ours
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import DesiredState, JobState


@pytest.fixture(autouse=True)
def _projects(context: Context) -> None:
    add_projects(context)


def test_a_user_holds_no_more_than_the_limit_and_delays_nobody(
    harness: Harness, context: Context
) -> None:
    limit(context, max_slots=4)
    harness.add_node(slots=16)
    act_as(harness, "ada")
    running, waiting, behind = (
        submit_ours(harness, 3),
        submit_ours(harness, 2),
        submit_ours(harness),
    )
    act_as(harness, "bob")
    other = submit_ours(harness, 4)
    assert harness.place() == 2
    assert {harness.job(each).state for each in (running, other)} == {JobState.STARTING}
    holds = "its owner holds 3 of 4 slots in project ours"
    assert harness.job(waiting).reason == f"{holds}; needs 2"
    assert harness.job(behind).reason == f"{holds}; waits behind tiny"
    assert harness.place() == 0
    limit_own(context, "ada", max_slots=5)
    assert harness.place() == 1
    assert harness.job(behind).reason == ("its owner holds 5 of 5 slots in project ours; needs 1")
    limit_own(context, "ada", max_slots=None)
    limit(context, max_slots=None)
    assert harness.place() == 1


def test_a_user_runs_no_more_jobs_than_the_limit(harness: Harness, context: Context) -> None:
    limit(context, max_running=2)
    harness.add_node(slots=16)
    act_as(harness, "ada")
    jobs = [submit_ours(harness, 2) for _ in range(3)]
    assert harness.place() == 2
    assert harness.job(jobs[2]).reason == "its owner runs 2 of 2 jobs in project ours"
    (supervisor,) = harness.claim_all(jobs[0])
    supervisor.train(1)
    cancel(context, jobs[0], actor=ADA, reason="")
    assert harness.place() == 0, "a stopping job holds its slots"
    supervisor.end("cancelled")
    assert harness.place() == 1


def test_the_built_in_user_has_no_limits(harness: Harness, context: Context) -> None:
    limit(context, max_slots=1)
    harness.add_node(slots=16)
    act_as(harness, "ada")
    harness.actor = ADA
    submit_ours(harness, 4)
    assert harness.place() == 1


def test_jobs_of_a_user_at_the_limit_hide_no_jobs_of_others(
    harness: Harness, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them have the same demand, and a round considers only a few jobs of each group."""
    monkeypatch.setattr(heads, "FIRST_AT_ONCE", 2)
    monkeypatch.setattr(heads, "GROUP_AT_ONCE", 2)
    limit_user = {"max_running": 1}
    act_as(harness, "ada")
    before = [submit_ours(harness) for _ in range(4)]
    assert harness.place() == 0
    limit(context, **limit_user)
    after = [submit_ours(harness) for _ in range(4)]
    act_as(harness, "bob")
    other = submit_ours(harness)
    harness.add_node(slots=16)
    assert harness.place() == 2
    assert harness.job(other).state == JobState.STARTING
    groups = [harness.job(each).demand for each in (*before[1:], *after)]
    assert len({*groups}) == 1, "the jobs from before the limit moved to the same group"


def test_a_transferred_job_counts_for_its_owner(harness: Harness, context: Context) -> None:
    limit(context, max_running=1)
    harness.add_node(slots=16)
    act_as(harness, "bob")
    running = submit_ours(harness)
    act_as(harness, "ada")
    own = submit_ours(harness)
    assert harness.place() == 2
    waiting = submit_ours(harness)
    assert harness.place() == 0
    transfer(context, running, "ada", actor=ADMIN)
    assert harness.place() == 0
    assert harness.job(waiting).reason == "its owner runs 2 of 1 jobs in project ours"
    assert {harness.job(each).state for each in (running, own)} == {JobState.STARTING}
    group = harness.job(waiting).demand
    transfer(context, waiting, "bob", actor=ADMIN)
    assert harness.job(waiting).demand is None, "it leaves the group of the former owner"
    assert harness.job(waiting).reason == "its owner runs 2 of 1 jobs in project ours"
    assert harness.place() == 1
    assert group is not None


def test_a_lower_limit_ends_nothing(harness: Harness, context: Context) -> None:
    harness.add_node(slots=8)
    act_as(harness, "ada")
    job_id, (supervisor,) = harness.running(project=OURS, resources={"world_size": 4})
    limit(context, max_slots=2)
    assert harness.empty() == 0
    assert supervisor.train(2) == DesiredState.RUN
    waiting = submit_ours(harness)
    assert harness.place() == 0
    reason = "its owner holds 4 of 2 slots in project ours; needs 1"
    assert harness.job(waiting).reason == reason
    assert harness.job(job_id).state == JobState.RUNNING


def test_a_resize_above_the_limit_waits(harness: Harness, context: Context) -> None:
    limit(context, max_slots=4)
    harness.add_node(slots=16)
    act_as(harness, "ada")
    job_id, (supervisor,) = harness.running(project=OURS, resources={"world_size": 2})
    resume(context, job_id, ResumeRequest(world_size=8), actor=ADMIN)
    supervisor.train(2)
    supervisor.end("stopped")
    harness.place()
    harness.clock.advance(60)
    assert harness.place() == 0
    assert harness.job(job_id).reason == ("needs 8, and its owner may hold 4 slots in project ours")


def test_what_waits_for_a_limit_is_read_with_as_many_queries_for_many_users(
    harness: Harness, context: Context
) -> None:
    statements: list[str] = []

    def note(*called: Any) -> None:
        statements.append(called[2])

    def count() -> int:
        statements.clear()
        with context.database.read() as connection:
            event.listen(context.database.engine, "before_cursor_execute", note)
            read_quotas(connection, context.now())
            event.remove(context.database.engine, "before_cursor_execute", note)
        return sum(statement.startswith("SELECT") for statement in statements)

    assert count() == 1, "without limits, a round reads no users"
    limit(context, max_slots=2)
    act_as(harness, "ada")
    first = count()
    for number in range(20):
        act_as(harness, f"user-{number}")
        limit_own(context, f"user-{number}", max_slots=1)
        submit_ours(harness)
    assert count() == first == 4


def test_the_own_limits_end_with_the_membership(harness: Harness, context: Context) -> None:
    harness.add_node(slots=4)
    act_as(harness, "ada")
    limit_own(context, "ada", max_running=0)
    waiting = submit_ours(harness)
    assert harness.place() == 0
    assert harness.job(waiting).reason == "its owner runs 0 of 0 jobs in project ours"
    own = harness.job(waiting).demand
    remove_member(context, OURS, "ada", actor=ADMIN)
    assert harness.job(waiting).demand not in {own, None}, "it moved back to the shared group"
    assert harness.place() == 1
