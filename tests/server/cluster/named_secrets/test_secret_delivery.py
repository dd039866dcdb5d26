"""Secrets at a launch: chosen at the placement, delivered by the claim, or a named end."""

from __future__ import annotations

from functools import partial

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import select, update

from server.cluster.named_secrets.service import (
    delete_own_secret,
    delete_project_secret,
    put_project_secret,
)
from server.core.context import Context
from server.core.database.tables import events
from server.core.errors import (
    ConflictError,
    RefusalError,
)
from server.core.people.secret_tables import secret_versions, secrets
from server.core.people.user_tables import users
from server.core.secrets import KeyFileError
from server.core.subject import Actor
from server.jobs.attempts.claim import claim_all
from server.jobs.jobs.resume import resume
from server.jobs.jobs.service import stop
from tests.server.claims import claim
from tests.server.cluster.named_secrets.jobs_with_secrets import (
    OF_OWNER,
    OF_PROJECT,
    claimed,
    placed,
    stopped,
    submitted,
)
from tests.server.core.audit.entries import waiting
from tests.server.harness import BRINGS_CODE, WORKER, Harness
from tests.server.members import OURS, set_role
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.states import AttemptState, DesiredState, JobState
from trainyard.protocol.worker_messages import PROTOCOL, SECRETS_PROTOCOL, Claim, ClaimReply
from trainyard.spec.environment import SecretReference

pytestmark = BRINGS_CODE


def test_a_claim_delivers_values_and_stores_an_event(harness: Harness, ada: Actor) -> None:
    job_id = placed(harness, ada, OF_PROJECT | OF_OWNER | {"PLAIN": "x"})
    reply = claimed(harness, job_id)
    assert reply.secrets == {"HF_TOKEN": "first value", "MINE": "value of ada"}
    assert reply.spec.env["HF_TOKEN"] == SecretReference(secret="hf")
    with harness.context.database.read() as connection:
        query = select(events.c.message, events.c.data, events.c.node)
        (row,) = connection.execute(query.where(events.c.kind == "secrets_delivered")).all()
    assert row.message == (
        "node-1 got secrets: HF_TOKEN ('hf', version 1), MINE ('own', version 1)"
    )
    assert row.node == "node-1"
    (audited,) = waiting(harness.context)
    assert (audited["operation"], audited["outcome"]) == ("secrets_delivered", "read")
    assert (audited["object"], audited["project"]) == (f"jobs/{job_id}", OURS)
    assert (audited["token"], audited["after"]) == ("node-1", {"name": ["hf", "own"]})
    assert "value of ada" not in repr(harness.dump())


def test_a_repeated_claim_gets_the_same_version_and_no_second_event(
    harness: Harness, ada: Actor, eve: Actor
) -> None:
    job_id = placed(harness, ada, OF_PROJECT)
    put_project_secret(harness.context, OURS, "hf", value="second value", actor=eve)
    attempt_id = harness.attempt(job_id).id
    for _ in range(2):
        reply = claim(harness.context, attempt_id, node="node-1", worker=WORKER, secret="x" * 43)
        assert reply.secrets == {"HF_TOKEN": "first value"}
    assert harness.kinds(job_id).count("secrets_delivered") == 1


def test_a_retry_gets_the_newest_version_unless_one_is_pinned(
    harness: Harness, ada: Actor, eve: Actor
) -> None:
    env = OF_PROJECT | {"PINNED": {"secret": "hf", "version": 1}}
    job_id, _ = stopped(harness, ada, env)
    put_project_secret(harness.context, OURS, "hf", value="second value", actor=eve)
    resume(harness.context, job_id, ResumeRequest(), actor=ada)
    assert harness.place() == 1
    values = {"HF_TOKEN": "second value", "PINNED": "first value"}
    assert claimed(harness, job_id).secrets == values


def test_jobs_without_secrets_get_none(harness: Harness, ada: Actor) -> None:
    job_id = placed(harness, ada, {"PLAIN": "x"})
    reply = claimed(harness, job_id)
    assert "secrets" not in reply.model_dump_json()
    assert harness.attempt(job_id).secrets is None


def test_a_deleted_secret_ends_the_queued_job_by_name(
    harness: Harness, ada: Actor, eve: Actor
) -> None:
    harness.add_node()
    job_id = submitted(harness.context, ada, OF_PROJECT)
    other = submitted(harness.context, ada, {"PLAIN": "x"})
    delete_project_secret(harness.context, OURS, "hf", actor=eve)
    harness.place()
    job = harness.job(job_id)
    assert job.state == JobState.FAILED
    assert "not_allowed: env.HF_TOKEN: project 'ours' has no secret 'hf'. Store" in job.reason
    assert harness.job(other).state == JobState.STARTING
    harness.reconcile(seconds=60)
    assert harness.place() == 0
    assert harness.kinds(job_id)[-1] == "job_ended"


@pytest.mark.parametrize("when", ["queued", "placed"])
@pytest.mark.parametrize("change", ["role", "state"])
def test_an_owner_without_the_right_gets_no_values(
    harness: Harness, ada: Actor, change: str, when: str
) -> None:
    harness.add_node()
    job_id = submitted(harness.context, ada, OF_PROJECT | OF_OWNER)
    if when == "placed":
        assert harness.place() == 1
    if change == "role":
        set_role(harness.context, ada.owner_id, OURS, "viewer")
    else:
        disabled = update(users).where(users.c.name == "ada").values(state="disabled")
        with harness.context.database.write() as connection:
            connection.execute(disabled)
    if when == "placed":
        with pytest.raises(ConflictError, match="the owner of the job has no secrets:use"):
            claimed(harness, job_id)
    harness.place()
    assert harness.job(job_id).state == JobState.FAILED
    assert "the owner of the job has no secrets:use in project 'ours'" in harness.job(job_id).reason


def test_a_secret_deleted_after_the_placement_ends_the_attempt(
    harness: Harness, ada: Actor
) -> None:
    job_id = placed(harness, ada, OF_OWNER)
    delete_own_secret(harness.context, "own", actor=ada)
    with pytest.raises(ConflictError, match="version 1 of the secret 'own' was deleted"):
        claimed(harness, job_id)
    job = harness.job(job_id)
    assert (job.state, job.pending) == (JobState.FAILED, None)
    assert "env.MINE: version 1 of the secret 'own' was deleted" in job.reason
    with pytest.raises(ConflictError):
        claimed(harness, job_id)


def test_a_second_claim_ends_no_running_share(harness: Harness, ada: Actor) -> None:
    job_id = placed(harness, ada, OF_OWNER)
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train()
    delete_own_secret(harness.context, "own", actor=ada)
    with pytest.raises(ConflictError):
        claimed(harness, job_id)
    assert harness.job(job_id).state == JobState.RUNNING


def test_an_attempt_that_ends_gets_no_values_again(harness: Harness, ada: Actor) -> None:
    job_id = placed(harness, ada, OF_PROJECT)
    repeated = partial(
        claim,
        harness.context,
        harness.attempt(job_id).id,
        node="node-1",
        worker=WORKER,
        secret="x" * 43,
    )
    repeated()
    stop(harness.context, job_id, actor=ada, reason="")
    with pytest.raises(ConflictError, match="must not run"):
        repeated()


def test_an_older_worker_gets_no_job_with_secrets(harness: Harness, ada: Actor) -> None:
    job_id = placed(harness, ada, OF_PROJECT)
    old = Claim(protocol=SECRETS_PROTOCOL - 1, node="node-1", worker=WORKER)
    (refused,) = claim_all(harness.context, [(harness.attempt(job_id).id, old)])
    assert isinstance(refused, ConflictError)
    assert harness.job(job_id).state == JobState.FAILED
    assert "version is too old" in harness.job(job_id).reason


@pytest.mark.parametrize("protocol", [SECRETS_PROTOCOL - 1, PROTOCOL])
def test_a_refused_share_ends_its_attempt_and_no_other(
    harness: Harness, ada: Actor, protocol: int
) -> None:
    """Of two nodes, one or both have an older worker; another job is claimed at the same time."""
    context = harness.context
    for name in ("node-1", "node-2", "node-3"):
        harness.add_node(name)
    two = {"world_size": 4, "nodes": 2}
    job_id = submitted(context, ada, OF_PROJECT, resources=two)
    assert harness.place() == 1
    other = submitted(context, ada, {})
    assert harness.place() == 1
    first, second = (share.node for share in harness.shares(job_id))
    (third,) = (share.node for share in harness.shares(other))
    new = Claim(protocol=protocol, node=first, worker=WORKER)
    old = Claim(protocol=SECRETS_PROTOCOL - 1, node=second, worker=WORKER)
    of_other = Claim(protocol=PROTOCOL, node=third, worker=WORKER)
    attempt_id = harness.attempt(job_id).id
    sent = [(attempt_id, new), (attempt_id, old), (harness.attempt(other).id, of_other)]
    found = [isinstance(each, ConflictError) for each in claim_all(context, sent)]
    assert found == [protocol < SECRETS_PROTOCOL, True, False]
    if protocol < SECRETS_PROTOCOL:
        assert harness.job(job_id).state == JobState.FAILED
    else:
        assert harness.attempt(job_id).desired == DesiredState.CANCEL
    assert harness.attempt(other).state == AttemptState.STARTING


def test_a_lost_key_delays_the_placement(harness: Harness, ada: Actor) -> None:
    """Nodes that could not claim the attempt would be blamed."""
    harness.add_node()
    job_id = submitted(harness.context, ada, OF_PROJECT)
    path = harness.context.secrets.path
    key = path.read_text()
    path.unlink()
    other = submitted(harness.context, ada, {})
    harness.place()
    assert harness.job(job_id).state == JobState.QUEUED
    assert "secrets.key" in harness.job(job_id).reason
    assert harness.job(other).state == JobState.STARTING
    path.write_text(key)
    harness.pass_time(600)
    harness.place()
    assert claimed(harness, job_id).secrets == {"HF_TOKEN": "first value"}


@pytest.mark.parametrize("fault", ["another key", "another secret"])
def test_a_damaged_version_affects_its_attempts_alone(
    harness: Harness, ada: Actor, eve: Actor, fault: str
) -> None:
    put_project_secret(harness.context, OURS, "bad", value="bad value", actor=eve)
    job_id = placed(harness, ada, {"BAD": {"secret": "bad"}})
    harness.add_node("node-2")
    other = submitted(harness.context, ada, OF_PROJECT)
    assert harness.place() == 1
    third = submitted(harness.context, ada, {"BAD": {"secret": "bad"}})
    spoil(harness.context, "bad", fault)
    sent = [
        (harness.attempt(each).id, Claim(protocol=PROTOCOL, node=node, worker=WORKER))
        for each in (job_id, other)
        for node in (harness.shares(each)[0].node,)
    ]
    refused, reply = claim_all(harness.context, sent)
    assert isinstance(refused, KeyFileError if fault == "another key" else ConflictError)
    assert isinstance(reply, ClaimReply)
    assert reply.secrets == {"HF_TOKEN": "first value"}
    is_final = fault == "another secret"
    harness.add_node("node-3")
    harness.place()
    for each in (job_id, third) if is_final else (third,):
        job = harness.job(each)
        assert job.state == (JobState.FAILED if is_final else JobState.QUEUED)
        assert "version 1 of the secret 'bad'" in job.reason


def spoil(context: Context, name: str, fault: str) -> None:
    """Replace the ciphertext of a secret's version."""
    ciphertext = Fernet(Fernet.generate_key()).encrypt(b"x").decode()
    if fault == "another secret":
        ciphertext = context.secrets.seal_text("x", purpose="another secret")
    its = select(secrets.c.id).where(secrets.c.name == name).scalar_subquery()
    with context.database.write() as connection:
        spoiled = update(secret_versions).where(secret_versions.c.secret_id == its)
        connection.execute(spoiled.values(ciphertext=ciphertext))


def test_an_unreadable_key_delays_the_launch_alone(harness: Harness, ada: Actor) -> None:
    job_id = placed(harness, ada, OF_PROJECT)
    other = submitted(harness.context, ada, {})
    assert harness.place() == 1
    key = harness.context.secrets.path.read_text()
    harness.context.secrets.path.unlink()
    sent = Claim(protocol=PROTOCOL, node="node-1", worker=WORKER)
    both = [(harness.attempt(each).id, sent) for each in (job_id, other)]
    first, second = claim_all(harness.context, both)
    assert isinstance(first, KeyFileError)
    assert not isinstance(second, RefusalError)
    harness.context.secrets.path.write_text(key)
    assert claimed(harness, job_id).secrets == {"HF_TOKEN": "first value"}


def test_values_that_no_process_can_hold_end_the_job(
    harness: Harness, ada: Actor, eve: Actor
) -> None:
    put_project_secret(harness.context, OURS, "big", value="x" * 65_536, actor=eve)
    harness.add_node()
    job_id = submitted(harness.context, ada, {f"V{n}": {"secret": "big"} for n in range(9)})
    harness.place()
    assert harness.job(job_id).state == JobState.FAILED
    assert "589,824 bytes; legal: at most 524,288" in harness.job(job_id).reason
