"""Attacks: what runs under the Unix account of a user is decided by this user or an admin."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from server.core.context import Context
from server.core.database.tables import attempts, jobs, nodes
from server.core.errors import ForbiddenError
from server.core.people.user_tables import users
from server.core.subject import Actor
from server.jobs.checkpoints.service import sample
from server.jobs.jobs.resume import resume
from server.jobs.owners.service import transfer
from server.jobs.shells.service import open_shell
from tests.actors import ADMIN, authenticate_token
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.members import OURS, add_projects, add_user
from trainyard.protocol.rest.checkpoints import SampleRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.shell_sessions.views import ShellRequest

LS = ShellRequest(argv=("ls",))
REFUSED = "bob has a Unix account, so only bob, and a holder of users:admin, decides"


@pytest.fixture
def bob(context: Context) -> Actor:
    """A member with a Unix account."""
    add_projects(context)
    actor = authenticate_token(context, add_user(context, "bob", {OURS: "member"})).actor
    with context.database.write() as connection:
        mapped = update(users).where(users.c.id == actor.user_id)
        connection.execute(mapped.values(unix_account="bob"))
    return actor


@pytest.fixture
def eve(context: Context, bob: Actor) -> Actor:
    """A maintainer of the project, without an account."""
    del bob
    return authenticate_token(context, add_user(context, "eve", {OURS: "maintainer"})).actor


def own(context: Context, job_id: str, owner: Actor) -> None:
    with context.database.write() as connection:
        mine = update(jobs).where(jobs.c.id == job_id)
        connection.execute(mine.values(owner_id=owner.user_id, token_id=None, demand=None))


def as_owner(context: Context) -> None:
    """Let all nodes run jobs under accounts; they know the account of bob."""
    with context.database.write() as connection:
        connection.execute(update(nodes).values(accounts={"bob": 1001}))


def test_no_maintainer_gives_a_job_to_an_account(
    context: Context, harness: Harness, bob: Actor, eve: Actor
) -> None:
    job_id = harness.submit(project=OURS)
    own(context, job_id, eve)
    before = harness.dump()
    with pytest.raises(ForbiddenError, match=REFUSED):
        transfer(context, job_id, "bob", actor=eve)
    assert harness.dump() == before
    transfer(context, job_id, "bob", actor=ADMIN)
    assert harness.job(job_id).owner_id == bob.user_id


def test_no_member_resumes_or_samples_under_the_account_of_another(
    context: Context, harness: Harness, bob: Actor, eve: Actor
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.running(project=OURS, step=9)
    checkpoint = harness.commit_checkpoint(job_id, 4)
    own(context, job_id, bob)
    with pytest.raises(ForbiddenError, match=REFUSED):
        sample(context, checkpoint, SampleRequest(prompt="x"), actor=eve)
    assert sample(context, checkpoint, SampleRequest(prompt="x"), actor=bob)
    before = harness.dump()
    with pytest.raises(ForbiddenError, match=REFUSED):
        resume(context, job_id, ResumeRequest(world_size=2), actor=eve)
    assert harness.dump() == before, "nor is the running job resized"
    supervisor.end("succeeded")
    wanted = ResumeRequest(checkpoint_id=checkpoint)
    before = harness.dump()
    with pytest.raises(ForbiddenError, match=REFUSED):
        resume(context, job_id, wanted, actor=eve)
    assert harness.dump() == before
    resume(context, job_id, wanted, actor=bob)


@BRINGS_CODE
def test_an_attempt_keeps_the_account_of_its_owner_after_a_transfer(
    context: Context, harness: Harness, bob: Actor, eve: Actor
) -> None:
    harness.add_node()
    as_owner(context)
    job_id = harness.submit(project=OURS)
    own(context, job_id, bob)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train()
    transfer(context, job_id, "eve", actor=eve)
    with context.database.read() as connection:
        stored = connection.execute(select(attempts.c.owner_id, attempts.c.account)).one()
    assert stored == (bob.user_id, "bob")
    with pytest.raises(ForbiddenError, match="runs under the Unix account bob of the job's former"):
        open_shell(context, job_id, LS, actor=eve)


def test_a_new_account_changes_no_attempt(context: Context, harness: Harness, bob: Actor) -> None:
    harness.add_node()
    as_owner(context)
    job_id = harness.submit(project=OURS)
    own(context, job_id, bob)
    assert harness.place() == 1
    with context.database.write() as connection:
        mapped = update(users).where(users.c.id == bob.user_id)
        connection.execute(mapped.values(unix_account="other"))
    assert harness.attempt(job_id).account == "bob", "all nodes of the attempt get this account"
