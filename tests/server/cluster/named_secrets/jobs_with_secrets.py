"""Jobs of `ours` that refer to secrets, for the tests of this folder."""

from __future__ import annotations

from typing import Any

from server.core.context import Context
from server.core.subject import Actor
from server.jobs.jobs.service import stop
from tests.actors import authenticate_token
from tests.server.claims import claim
from tests.server.harness import WORKER, Harness
from tests.server.members import OURS, add_user
from tests.server.submit import submit
from trainyard.protocol.worker_messages import ClaimReply
from trainyard.spec.job import parse_job_spec

OF_PROJECT: dict[str, Any] = {"HF_TOKEN": {"secret": "hf"}}
OF_OWNER: dict[str, Any] = {"MINE": {"secret": "own", "of": "owner"}}
TRAINING = {"steps": 100, "global_batch_size": 16, "micro_batch_size": 4}


def user(context: Context, name: str, role: str, **fields: Any) -> Actor:
    return authenticate_token(context, add_user(context, name, {OURS: role}, **fields)).actor


def submitted(context: Context, actor: Actor, env: dict[str, Any], **fields: Any) -> str:
    document = {"name": "tiny", "project": OURS, "env": env, "training": TRAINING} | fields
    return submit(context, parse_job_spec(document), actor=actor).id


def claimed(harness: Harness, job_id: str) -> ClaimReply:
    attempt = harness.attempt(job_id)
    return claim(harness.context, attempt.id, node="node-1", worker=WORKER)


def placed(harness: Harness, actor: Actor, env: dict[str, Any]) -> str:
    harness.add_node()
    job_id = submitted(harness.context, actor, env)
    assert harness.place() == 1
    return job_id


def stopped(harness: Harness, actor: Actor, env: dict[str, Any]) -> tuple[str, str]:
    """Return a job that stopped at step 40, and its checkpoint."""
    harness.add_node()
    job_id = submitted(harness.context, actor, env)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train(40)
    checkpoint_id = harness.commit_checkpoint(job_id, 40)
    stop(harness.context, job_id, actor=actor, reason="")
    supervisor.end("stopped")
    return job_id, checkpoint_id
