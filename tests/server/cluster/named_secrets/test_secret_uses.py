"""Secrets in jobs: who may use them, and what is refused by name before it queues."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from server.cluster.named_secrets.service import (
    delete_project_secret,
    put_own_secret,
    put_project_secret,
)
from server.core.context import Context
from server.core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
)
from server.core.subject import Actor
from server.jobs.jobs.fork import fork, preview
from server.jobs.jobs.queries import job_view
from server.jobs.jobs.resume import resume
from server.jobs.owners.service import transfer
from server.jobs.shells.service import open_shell
from tests.actors import ADMIN
from tests.server.cluster.named_secrets.jobs_with_secrets import (
    OF_OWNER,
    OF_PROJECT,
    claimed,
    placed,
    stopped,
    submitted,
    user,
)
from tests.server.harness import BRINGS_CODE, Harness
from tests.server.members import OURS, THEIRS
from tests.server.submit import submit
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.protocol.shell_sessions.views import ShellRequest
from trainyard.protocol.states import JobState
from trainyard.run.failures import FailureReason
from trainyard.spec.environment import SecretReference
from trainyard.spec.job import parse_job_spec

pytestmark = BRINGS_CODE
LS = ShellRequest(argv=("ls",))


# ---- submissions ---------------------------------------------------------------------------------


def test_a_job_shows_the_reference_alone(context: Context, ada: Actor) -> None:
    job_id = submitted(context, ada, OF_PROJECT | OF_OWNER | {"PLAIN": "x"})
    shown = job_view(context, job_id, scope=ada.scope).spec.env
    assert shown["HF_TOKEN"] == SecretReference(secret="hf")
    assert shown["MINE"] == SecretReference(secret="own", of="owner")
    assert shown["PLAIN"] == "********"


@pytest.mark.parametrize(
    ("env", "detail"),
    [
        ({"A": {"secret": "xy"}}, "project 'ours' has no secret 'xy'; legal: hf"),
        (
            {"A": {"secret": "hf", "version": 2}},
            "the secret 'hf' of project 'ours' has no version 2, only 1; legal: hf",
        ),
        (
            {"A": {"secret": "hf", "of": "owner"}},
            "the owner of the job has no secret 'hf'; legal: hf; of the owner: own",
        ),
    ],
)
def test_an_unknown_secret_is_refused_by_name(
    context: Context, harness: Harness, ada: Actor, env: dict[str, Any], detail: str
) -> None:
    before = harness.dump()
    with pytest.raises(InvalidRequestError) as caught:
        submitted(context, ada, env)
    assert [(each.pointer, each.detail) for each in caught.value.problems] == [("/env/A", detail)]
    assert harness.dump() == before


def test_secrets_of_another_project_are_unknown(context: Context, ada: Actor) -> None:
    put_project_secret(context, THEIRS, "theirs", value="their value", actor=ADMIN)
    with pytest.raises(InvalidRequestError, match=r"'ours' has no secret 'theirs'; legal: hf$"):
        submitted(context, ada, {"A": {"secret": "theirs"}})
    refusals = []
    for project in (THEIRS, "unknown"):
        with pytest.raises(ForbiddenError) as caught:
            submitted(context, ada, {"A": {"secret": "theirs"}}, project=project)
        refusals.append(caught.value.detail.replace(project, "PROJECT"))
    assert refusals[0] == refusals[1]


def test_a_token_without_the_scope_uses_no_secret(context: Context, ada: Actor) -> None:
    scopes = (Permission.JOBS_READ, Permission.JOBS_WRITE, Permission.CODE_RUN)
    of_ci = user(context, "ci", "member", scopes=scopes)
    with pytest.raises(ForbiddenError, match="this needs secrets:use, because of /env/HF_TOKEN"):
        submitted(context, of_ci, OF_PROJECT)
    assert submitted(context, of_ci, {"PLAIN": "x"})


def test_the_built_in_user_has_no_own_secrets(context: Context, eve: Actor) -> None:
    assert submitted(context, ADMIN, OF_PROJECT)
    with pytest.raises(InvalidRequestError, match="the built-in user has no own secrets"):
        submitted(context, ADMIN, OF_OWNER)


def test_a_refused_submission_leaves_others_of_its_group(context: Context, ada: Actor) -> None:
    """A repeat with the same key compares references, too."""
    spec = parse_job_spec({"project": OURS, "env": OF_PROJECT})
    first = submit(context, spec, actor=ada, idempotency_key="k")
    assert submit(context, spec, actor=ada, idempotency_key="k").id == first.id
    pinned = parse_job_spec({"project": OURS, "env": {"HF_TOKEN": {"secret": "hf", "version": 1}}})
    with pytest.raises(InvalidRequestError, match="used before with another body"):
        submit(context, pinned, actor=ada, idempotency_key="k")


# ---- forks, resumes, transfers, commands ---------------------------------------------------------


def test_a_fork_takes_references_to_secrets_of_the_project_over(
    harness: Harness, ada: Actor, bob: Actor
) -> None:
    _, checkpoint_id = stopped(harness, ada, OF_PROJECT)
    request = ForkRequest(changes={"training": {"steps": 200}})
    _, job_id = fork(harness.context, checkpoint_id, request, actor=bob)
    assert harness.job(job_id).owner_id == bob.user_id
    assert harness.place() == 1
    assert claimed(harness, job_id).secrets == {"HF_TOKEN": "first value"}


def test_a_fork_of_another_person_repeats_references_to_own_secrets(
    harness: Harness, ada: Actor, bob: Actor
) -> None:
    """Otherwise the code of ada's job gets a secret of whoever forks it."""
    context = harness.context
    _, checkpoint_id = stopped(harness, ada, OF_PROJECT | OF_OWNER)
    put_own_secret(context, "own", value="value of bob", actor=bob)
    changes: dict[str, Any] = {"training": {"steps": 200}}
    before = harness.dump()
    for attempt in (fork, preview):
        for actor in (bob, ADMIN):
            with pytest.raises(InvalidRequestError) as caught:
                attempt(context, checkpoint_id, ForkRequest(changes=changes), actor=actor)
            (problem,) = caught.value.problems
            assert problem.pointer == "/changes/env/MINE"
            assert "the fork would get yours: repeat the reference" in problem.detail
    assert harness.dump() == before
    request = ForkRequest(changes=changes | {"env": OF_OWNER})
    _, job_id = fork(context, checkpoint_id, request, actor=bob)
    assert harness.place() == 1
    assert claimed(harness, job_id).secrets == {
        "HF_TOKEN": "first value",
        "MINE": "value of bob",
    }
    _, own = fork(context, checkpoint_id, ForkRequest(changes=changes), actor=ada)
    assert harness.job(own).owner_id == ada.user_id


def test_a_fork_may_replace_or_drop_a_reference(harness: Harness, ada: Actor, bob: Actor) -> None:
    _, checkpoint_id = stopped(harness, ada, OF_PROJECT | OF_OWNER)
    changes = {"training": {"steps": 200}, "env": {"MINE": {"of": "project", "secret": "hf"}}}
    _, job_id = fork(harness.context, checkpoint_id, ForkRequest(changes=changes), actor=bob)
    assert job_view(harness.context, job_id, scope=bob.scope).spec.env == {
        "HF_TOKEN": SecretReference(secret="hf"),
        "MINE": SecretReference(secret="hf"),
    }


def test_a_repeated_fork_compares_references(harness: Harness, ada: Actor) -> None:
    _, checkpoint_id = stopped(harness, ada, {"PLAIN": "x"})
    changes = {"training": {"steps": 200}, "env": OF_PROJECT}
    request = ForkRequest(changes=changes)
    repeated = partial(fork, harness.context, checkpoint_id, actor=ada, idempotency_key="k")
    _, first = repeated(request)
    assert repeated(request)[1] == first
    other = ForkRequest(changes=changes | {"env": {"HF_TOKEN": {"secret": "wandb"}}})
    with pytest.raises(InvalidRequestError, match="used before with another body"):
        repeated(other)


def test_others_resume_no_job_with_secrets_of_its_owner(
    harness: Harness, ada: Actor, bob: Actor
) -> None:
    context = harness.context
    job_id, _ = stopped(harness, ada, OF_PROJECT | OF_OWNER)
    before = harness.dump()
    with pytest.raises(ForbiddenError, match=r"secrets of its owner \(MINE='own'\)"):
        resume(context, job_id, ResumeRequest(), actor=bob)
    assert harness.dump() == before
    resume(context, job_id, ResumeRequest(), actor=ada)
    assert harness.job(job_id).state == JobState.QUEUED


def test_a_member_resumes_a_job_with_secrets_of_the_project(
    harness: Harness, ada: Actor, bob: Actor
) -> None:
    job_id, _ = stopped(harness, ada, OF_PROJECT)
    may = (Permission.JOBS_READ, Permission.JOBS_WRITE, Permission.CODE_RUN)
    without = user(harness.context, "carl", "member", scopes=may)
    with pytest.raises(ForbiddenError, match="secrets:use"):
        resume(harness.context, job_id, ResumeRequest(), actor=without)
    resume(harness.context, job_id, ResumeRequest(), actor=bob)


def test_a_resume_needs_secrets_that_exist(harness: Harness, ada: Actor, eve: Actor) -> None:
    job_id, _ = stopped(harness, ada, OF_PROJECT)
    delete_project_secret(harness.context, OURS, "hf", actor=eve)
    with pytest.raises(InvalidRequestError, match="/env/HF_TOKEN: project 'ours' has no secret"):
        resume(harness.context, job_id, ResumeRequest(), actor=ada)


@pytest.mark.parametrize("state", ["queued", "starting", "running", "queued again", "stopped"])
def test_own_secrets_do_not_follow_a_transfer(
    harness: Harness, ada: Actor, bob: Actor, eve: Actor, state: str
) -> None:
    """Otherwise a maintainer gives a job to the person whose secret the job shall print."""
    context = harness.context
    put_own_secret(context, "own", value="value of bob", actor=bob)
    job_id = in_state(harness, ada, OF_OWNER | OF_PROJECT, state)
    refusals = []
    for name in ("bob", "eve"):  # one has such a secret, one has none
        before = harness.dump()
        with pytest.raises(ConflictError, match=r"own secrets of its owner \(MINE\)") as caught:
            transfer(context, job_id, name, actor=eve)
        assert harness.dump() == before
        refusals.append(caught.value.detail)
    assert refusals[0] == refusals[1], "the answer does not depend on the other person's secrets"


def in_state(harness: Harness, actor: Actor, env: dict[str, Any], state: str) -> str:
    if state == "queued":
        return submitted(harness.context, actor, env)
    if state == "stopped":
        return stopped(harness, actor, env)[0]
    job_id = placed(harness, actor, env)
    if state == "starting":
        return job_id
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train()
    if state == "queued again":
        supervisor.end("failed", FailureReason.NODE_LOST)
        assert harness.job(job_id).state == JobState.QUEUED
    return job_id


def test_secrets_of_the_project_follow_a_transfer(
    harness: Harness, ada: Actor, bob: Actor, eve: Actor
) -> None:
    job_id, _ = stopped(harness, ada, OF_PROJECT)
    transfer(harness.context, job_id, "bob", actor=eve)
    resume(harness.context, job_id, ResumeRequest(), actor=bob)
    assert harness.place() == 1
    assert claimed(harness, job_id).secrets == {"HF_TOKEN": "first value"}


def test_only_the_owner_runs_commands_next_to_own_secrets(harness: Harness, ada: Actor) -> None:
    context = harness.context
    job_id = placed(harness, ada, OF_OWNER)
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train()
    with pytest.raises(ForbiddenError, match=r"secrets of its owner \(MINE='own'\)"):
        open_shell(context, job_id, LS, actor=ADMIN)
    open_shell(context, job_id, LS, actor=ada)


def test_a_command_next_to_secrets_needs_the_permission(
    harness: Harness, ada: Actor, eve: Actor
) -> None:
    job_id = placed(harness, ada, OF_PROJECT)
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train()
    may = (Permission.JOBS_READ, Permission.SHELL_RUN, Permission.CODE_RUN)
    without = user(harness.context, "carl", "member", scopes=may)
    transfer(harness.context, job_id, "carl", actor=eve)
    with pytest.raises(ForbiddenError, match="this needs secrets:use, because of /argv"):
        open_shell(harness.context, job_id, LS, actor=without)
    open_shell(harness.context, job_id, LS, actor=ADMIN)
