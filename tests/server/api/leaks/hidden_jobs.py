"""Jobs of a project that the attacker has no role in, with a name or number in every place."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from server.core.context import Context
from server.core.database.metric_and_log_tables import artifacts
from server.jobs.checkpoints.service import verify
from server.jobs.jobs.fork import fork
from server.jobs.packs.store import PackUpload
from server.jobs.shells.service import open_shell
from server.telemetry.imports.store import start_import
from tests.actors import ADMIN, authenticate_token
from tests.server.api.in_process import TestClient
from tests.server.harness import Harness, Supervisor
from tests.server.members import OURS, add_projects, add_user
from tests.server.reports import chunk, metric_lines, send
from tests.server.submit import submit
from tests.server.telemetry.artifacts.uploading import line, upload
from tests.server.telemetry.artifacts.uploading import report as report_artifacts
from trainyard.protocol.past_runs.views import ImportedRun, ImportRequest
from trainyard.protocol.rest.checkpoints import ForkRequest
from trainyard.protocol.shell_sessions.views import ShellRequest
from trainyard.spec.job import JobSpec

LAB = "hidden-lab"
CANARY = re.compile(r"hidden-|secret[-/ .]|0\.0777")
"""What no response may contain: names of the hidden project, its jobs, people, tags and values."""
PACK = b"hidden code"
RUN = b"hidden run"
NO_ID = "7" + "z" * 25
"""An id that no object has."""


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Ids:
    """What an attack names: of hidden objects, or of none."""

    job: str
    attempt_job: str
    checkpoint: str
    operation: str
    shell: str
    artifact: str
    pack: str
    run: str
    project: str
    name: str
    tag: str
    owner: str
    word: str

    def masked(self, text: str) -> str:
        """Return a text without what the attack named, for a comparison."""
        for value in sorted(vars(self).values(), key=len, reverse=True):
            text = text.replace(value, "<>").replace(value.replace(".", "/"), "<>")
        return re.sub(r'"request_id":"\w+"', "", text)


MISSING = Ids(
    job=NO_ID,
    attempt_job=NO_ID,
    checkpoint=f"{NO_ID}.a1.step-8",
    operation=NO_ID,
    shell=NO_ID,
    artifact=NO_ID,
    pack=digest_of(b"no code"),
    run=digest_of(b"no run"),
    project="absent-lab",
    name="absent-llama",
    tag="absent-tag",
    owner="absent-owner",
    word="lr=0.0888",
)


@dataclass
class Attack:
    """A member of another project, with a job there."""

    client: TestClient
    own_job: str
    own_checkpoint: str
    own_queued: str
    ids: Ids = field(default_factory=lambda: MISSING)

    def get(self, path: str, **query: Any) -> str:
        """Return status and body of a reply."""
        return self.send("GET", path, params=query)

    def post(self, path: str, body: Any = None, **query: Any) -> str:
        """Return status and body of a reply."""
        return self.send("POST", path, json=body, params=query)

    def send(self, method: str, path: str, **given: Any) -> str:
        """Return status and body of a reply."""
        reply = self.client.request(method, f"/api/v1{path}", **given)
        assert reply.status_code < 500, reply.text
        return f"{reply.status_code} {reply.text}"


def build(context: Context, harness: Harness) -> tuple[Ids, str, Mapping[str, str]]:
    """Store hidden jobs and the attacker's own; return hidden ids, token and own ids."""
    add_projects(context, LAB, OURS)
    owner = add_user(context, "hidden-owner", {LAB: "maintainer"})
    token = add_user(context, "ada", {OURS: "maintainer"})
    harness.add_node("node-1", slots=2)
    pack = PackUpload(context, actor=ADMIN)
    pack.add(PACK)
    digest = pack.finish(digest_of(PACK)).digest
    hidden, supervisor = _running(harness, LAB, name="secret-llama", tags=("secret-tag",))
    own, _ = _running(harness, OURS, name="open")
    _report(context, supervisor)
    checkpoint = harness.commit_checkpoint(hidden, 8)
    own_checkpoint = harness.commit_checkpoint(own, 8)
    operation = verify(context, checkpoint, actor=ADMIN)
    shell = open_shell(context, hidden, ShellRequest(argv=("ls",)), actor=ADMIN)
    request = ForkRequest(name="secret-fork", changes={"project": LAB})
    fork(context, own_checkpoint, request, actor=ADMIN)
    by_owner = authenticate_token(context, owner).actor
    program = {"command": ["train.py"], "arguments": {"lr": 0.0777}}
    given = {"project": LAB, "name": "secret-program", "program": program}
    submit(context, JobSpec.model_validate(given), actor=by_owner)
    packed = {"command": ["train.py"], "code": {"pack": digest}}
    harness.submit(project=LAB, name="secret-pack", program=packed)
    start_import(context, _import(), actor=ADMIN)
    queued = harness.submit(project=OURS, name="waits", resources={"world_size": 2})
    harness.place()
    harness.clock.advance(600)
    with context.database.read() as connection:
        artifact = connection.scalar(select(artifacts.c.id))
    ids = Ids(
        job=hidden,
        attempt_job=hidden,
        checkpoint=checkpoint,
        operation=operation,
        shell=shell.id,
        artifact=str(artifact),
        pack=digest,
        run=digest_of(RUN),
        project=LAB,
        name="secret-llama",
        tag="secret-tag",
        owner="hidden-owner",
        word="lr=0.0777",
    )
    own_ids = {"own_job": own, "own_checkpoint": own_checkpoint, "own_queued": queued}
    return ids, token, own_ids


def _running(harness: Harness, project: str, **sections: Any) -> tuple[str, Supervisor]:
    job_id = harness.submit(project=project, **sections)
    harness.place()
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train(8)
    return job_id, supervisor


def _report(context: Context, supervisor: Supervisor) -> None:
    content = b"secret bytes"
    upload(context, supervisor, content)
    lines = metric_lines(1, 8, secret__series=1.5)
    send(
        context,
        supervisor,
        chunk("metrics", lines),
        chunk("log:0", b"a secret line\n"),
    )
    report_artifacts(context, supervisor, line("secret.bin", content))


def _import() -> ImportRequest:
    return ImportRequest(
        run=ImportedRun(tool="mlflow", run_id="secret", digest=digest_of(RUN), points=0),
        name="secret-import",
        project=LAB,
        state="succeeded",
        start_time=1.7e9,
        seconds=60.0,
        last_step=1,
    )
