"""Operations on nodes that run jobs under the Unix accounts of their owners."""

from __future__ import annotations

from sqlalchemy import select, update

from server.core.context import Context
from server.core.database.tables import jobs, nodes
from server.core.people.unix_accounts import read_needed_accounts
from server.core.people.user_tables import users
from server.core.subject import ADMIN_USER_ID
from server.jobs.checkpoints import service
from server.jobs.jobs.service import delete as delete_job
from tests.actors import ADA
from tests.server.yard import Yard


def map_owner(context: Context) -> None:
    """Map the owner of the jobs to the account `ada`, which the nodes know."""
    with context.database.write() as connection:
        mapped = update(users).where(users.c.id == ADMIN_USER_ID)
        connection.execute(mapped.values(unix_account="ada"))
        connection.execute(update(nodes).values(accounts={"ada": 1001}))


def verification(yard: Yard, context: Context) -> str:
    """Queue the verification of a checkpoint of a running job, and return its id."""
    job_id, _ = yard.harness.running(step=9)
    checkpoint = yard.harness.commit_checkpoint(job_id, 4)
    return service.verify(context, checkpoint, actor=ADA)


def test_an_operation_waits_for_the_account_of_the_owner_and_gets_it(
    yard: Yard, context: Context
) -> None:
    operation_id = verification(yard, context)
    with context.database.write() as connection:
        connection.execute(update(nodes).values(accounts={}))
    assert yard.give() == []
    waiting = yard.operation(operation_id).waiting
    assert waiting is not None
    assert waiting.startswith("no node that is online runs jobs of an owner without a Unix account")
    map_owner(context)
    assert yard.give() == [(operation_id, "node-1")]
    assert yard.claim(operation_id).account == "ada"


def test_other_nodes_get_no_account(yard: Yard, context: Context) -> None:
    operation_id = verification(yard, context)
    with context.database.write() as connection:
        mapped = update(users).where(users.c.id == ADMIN_USER_ID)
        connection.execute(mapped.values(unix_account="ada"))
    yard.give()
    granted = yard.claim(operation_id)
    assert "account" not in granted.model_dump_json(), "a worker of version 1.0 refuses it"


def test_the_deletion_of_a_job_with_checkpoints_runs_under_the_account(
    yard: Yard, context: Context
) -> None:
    job_id, (supervisor,) = yard.harness.running(step=9)
    yard.harness.commit_checkpoint(job_id, 4)
    supervisor.end("succeeded")
    map_owner(context)
    (operation_id,) = delete_job(context, job_id, actor=ADA, checkpoints="delete")
    with context.database.read() as connection:
        assert connection.scalar(select(jobs.c.id)) is None
        assert read_needed_accounts(connection) == ("ada",), "also without the job's row"
    assert yard.give() == [(operation_id, "node-1")]
    assert yard.claim(operation_id).account == "ada"


def test_an_operation_stays_with_the_owner_whose_files_it_uses(
    yard: Yard, context: Context
) -> None:
    operation_id = verification(yard, context)
    map_owner(context)
    with context.database.write() as connection:
        connection.execute(update(jobs).values(owner_id="0" * 26))  # as after a transfer
    assert yard.give() == [(operation_id, "node-1")]
    assert yard.claim(operation_id).account == "ada"
