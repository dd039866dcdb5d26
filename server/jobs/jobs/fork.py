"""Forks: new jobs that start from a checkpoint of another job (docs/forking.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, ClassVar

from sqlalchemy import Connection, Table

from server.api.auth.endings import write_as
from server.cluster.projects.service import check_project
from server.core.context import Context
from server.core.database.column_types import StoredRecord
from server.core.database.rows import TypedRow
from server.core.database.tables import checkpoints, jobs
from server.core.errors import ConflictError, InvalidRequestError, NotFoundError, RefusalError
from server.core.lifecycle import lock_job
from server.core.subject import Actor
from server.core.visibility.scope import Scope
from server.jobs.jobs.checks import (
    check_code,
    check_hardware,
    check_places,
    check_secrets,
    check_spec,
    check_world_size,
    known_slots,
)
from server.jobs.jobs.idempotency import job_of_key
from server.jobs.jobs.submission import CheckedJob, insert_jobs
from trainyard.base.problems import Problem, SpecError
from trainyard.planner.plan import plan
from trainyard.planner.results import Plan
from trainyard.protocol.fork_rules import guarantees, settle_parts
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.operations import Verification
from trainyard.protocol.rest.checkpoints import ForkPreview, ForkRequest
from trainyard.protocol.resume_parts import CheckpointPart, start_state
from trainyard.run.checkpoints.checkpoint_names import split_checkpoint_id
from trainyard.run.checkpoints.program_manifest import ProgramManifest
from trainyard.spec.environment import (
    Environment,
    SecretReference,
    is_allowed,
    plain_variables,
    secret_references,
)
from trainyard.spec.job import JobSpec, parse_job_spec

LONGEST_NAME = 80
SUFFIX = "-fork"


@dataclass(frozen=True, slots=True)
class ForkSource(TypedRow):
    """The checkpoint to fork from, with the settings of the job that saved it."""

    table: ClassVar[Table] = checkpoints
    id: str
    step: int
    root: str
    manifest: Manifest | ProgramManifest
    verification: Verification | None
    deleting_since: datetime | None
    stored_spec: Annotated[StoredRecord[JobSpec], jobs.c.spec]
    project: Annotated[str, jobs.c.project]
    env: Annotated[dict[str, Any] | None, jobs.c.env]
    token_id: Annotated[str | None, jobs.c.token_id]
    owner_id: Annotated[str, jobs.c.owner_id]
    created_by: Annotated[str, jobs.c.created_by]
    name: Annotated[str, jobs.c.name]
    storage: Annotated[str | None, jobs.c.storage]

    @property
    def spec(self) -> JobSpec:
        """The submitted spec of the job, without the values of `env`.

        Raises:
            UnreadableError: another version wrote the spec.
        """
        spec = self.stored_spec.read(f"spec of the job of {self.id}")
        return spec.model_copy(update={"project": self.project})


@dataclass(frozen=True)
class PreparedFork:
    """A legal fork that is not stored yet."""

    source: ForkSource
    spec: JobSpec
    plan: Plan
    parts: tuple[CheckpointPart, ...]

    @property
    def start_step(self) -> int:
        """Number of completed steps at the start of the new job."""
        return self.source.step if CheckpointPart.COUNTERS in self.parts else 0


def preview(
    context: Context, checkpoint_id: str, request: ForkRequest, *, actor: Actor
) -> ForkPreview:
    """Return the effect of a fork, and store nothing.

    Raises:
        NotFoundError: the actor sees no such checkpoint.
        ConflictError: the checkpoint is being deleted, known to be damaged, or saved by a program.
        InvalidRequestError: the new job cannot run here, or not from this checkpoint.
    """
    with context.database.read() as connection:
        return _preview(_prepare(context, connection, checkpoint_id, request=request, actor=actor))


def fork(
    context: Context,
    checkpoint_id: str,
    request: ForkRequest,
    *,
    actor: Actor,
    idempotency_key: str | None = None,
) -> tuple[ForkPreview | None, str]:
    """Store a new job that starts from a checkpoint; return its preview and its id.

    A repeated call with the same key returns the id of the first job. The preview is then None if
    it can no longer be computed, for example after the deletion of the checkpoint.

    Raises:
        NotFoundError: the actor sees no such checkpoint.
        ConflictError: the checkpoint is being deleted, known to be damaged, or saved by a program.
        InvalidRequestError: the new job cannot run here, or not from this checkpoint; or the key
            was used for another request.
        ForbiddenError: the new job brings code or uses secrets, and the actor lacks `code:run` or
            `secrets:use`.
    """
    job_id = context.new_id()
    with write_as(context, actor) as connection:
        prepare = partial(
            _prepare, context, connection, checkpoint_id, request=request, actor=actor
        )
        if idempotency_key is not None:
            earlier = job_of_key(
                context,
                connection,
                actor,
                key=idempotency_key,
                digest=_digest(checkpoint_id, request),
                same_env=partial(_has_env, request.changes.get("env", {})),
                job_id=job_id,
            )
            if earlier is not None:
                with suppress(RefusalError):
                    return _preview(prepare()), earlier
                return None, earlier
        _source(connection, checkpoint_id, scope=actor.scope)
        # The lock keeps the retention of the other job from deleting the checkpoint.
        lock_job(connection, split_checkpoint_id(checkpoint_id)[0])
        prepared = prepare()
        check_code(actor, prepared.spec, project=prepared.spec.project, at="/changes")
        job = CheckedJob(
            job_id,
            prepared.spec,
            actor,
            checkpoint_id=checkpoint_id,
            parts=prepared.parts,
            start_step=prepared.start_step,
            storage=prepared.source.storage,
        )
        insert_jobs(context, connection, [job])
    return _preview(prepared), job_id


def _digest(checkpoint_id: str, request: ForkRequest) -> str:
    """Return the SHA-256 of a request, with names but not values of environment variables."""
    env = request.changes.get("env")
    if isinstance(env, Mapping):
        changes = {**request.changes, "env": {n: v and "" for n, v in sorted(env.items())}}
        request = request.model_copy(update={"changes": changes})
    return hashlib.sha256(f"{checkpoint_id} {request.model_dump_json()}".encode()).hexdigest()


def _has_env(patch: object, env: Environment) -> bool:
    """Return whether a request with this JSON merge patch can have led to the environment `env`."""
    if not isinstance(patch, Mapping):
        return patch is None and not env
    return all(_leads_to(value, env.get(name)) for name, value in patch.items())


def _leads_to(value: object, found: str | SecretReference | None) -> bool:
    if isinstance(value, Mapping) and isinstance(found, SecretReference):
        document = found.model_dump(mode="json")
        return all(document.get(field) == part for field, part in value.items())
    return value == found


def _prepare(
    context: Context,
    connection: Connection,
    checkpoint_id: str,
    *,
    request: ForkRequest,
    actor: Actor,
) -> PreparedFork:
    source = _source(connection, checkpoint_id, scope=actor.scope)
    if source.spec.program is not None:
        raise ConflictError(
            f"{checkpoint_id} was saved by a program (program.command): submit a new job that "
            "reads its folder"
        )
    env = _env(context, source, request=request, actor=actor)
    spec = _changed(source.spec.model_copy(update={"env": env}), source.name, request)
    try:
        check_spec(context, spec)
        check_project(connection, spec.project, scope=actor.scope)
        check_hardware(connection, spec)
        check_places(connection, spec, scope=actor.scope)
        check_secrets(context, connection, spec, actor=actor)
    except InvalidRequestError as error:
        raise InvalidRequestError.of(_in_request(error.problems)) from None
    try:
        parts = settle_parts(source.spec, spec, request.parts)
    except SpecError as error:
        raise InvalidRequestError.of(error.problems) from None
    world_size = spec.resources.world_size
    check_world_size(context, world_size, pointer="/changes/resources/world_size")
    prepared = PreparedFork(source, spec, plan(spec, slots=known_slots(connection)), parts)
    _check_place(prepared)
    return prepared


def _env(
    context: Context, source: ForkSource, *, request: ForkRequest, actor: Actor
) -> Environment:
    """Return the environment that the fork inherits, without values that the actor may not see.

    References to secrets of the project are taken over, because the actor needs the right to use
    them. A reference to own secrets would mean those of the actor, which the code of the other job
    would get, so the actor must repeat it.
    """
    env = context.secrets.open(source.env)
    hidden: dict[str, str] = {}
    if not actor.may_act_for(source.owner_id, source.token_id):
        detail = (
            f"{source.created_by} submitted the other job with a value that may be a "
            "secret, so it is not taken over: give a value, or null to leave it out"
        )
        plain = plain_variables(env).items()
        hidden |= {name: detail for name, value in plain if not is_allowed(name, value)}
    if not actor.made(source.owner_id, source.token_id):
        detail = (
            "the other job refers to an own secret of its owner, and the fork would get yours: "
            "repeat the reference, or null to leave it out"
        )
        references = secret_references(env).items()
        hidden |= {name: detail for name, each in references if each.of == "owner"}
    changes = request.changes.get("env", {})
    left_open = hidden.keys() - changes.keys() if isinstance(changes, Mapping) else set[str]()
    if left_open:
        raise InvalidRequestError.of(
            Problem(pointer=f"/changes/env/{name}", detail=hidden[name])
            for name in sorted(left_open)
        )
    return {name: value for name, value in env.items() if name not in hidden}


def _source(connection: Connection, checkpoint_id: str, *, scope: Scope) -> ForkSource:
    query = ForkSource.select().join(jobs, jobs.c.id == checkpoints.c.job_id)
    its = checkpoints.c.id == checkpoint_id, scope.filter(jobs.c.project)
    row = ForkSource.one_or_none(connection, query.where(*its))
    if row is None:
        raise NotFoundError(f"no checkpoint has the id {checkpoint_id!r}")
    if row.deleting_since is not None:
        raise ConflictError(f"{checkpoint_id} is being deleted")
    if row.verification is not None and not row.verification.ok:
        found = f"{row.verification.fault}: {row.verification.message}"
        raise ConflictError(f"{checkpoint_id} is damaged: {found}")
    return row


def _changed(spec: JobSpec, name: str, request: ForkRequest) -> JobSpec:
    """Return the other job's spec with the requested changes and the new name."""
    document = spec.model_dump(mode="json", exclude_defaults=True)
    document["name"] = name[: LONGEST_NAME - len(SUFFIX)] + SUFFIX
    document.get("checkpoint", {}).pop("start_from", None)
    document = _merged(document, request.changes)
    if request.name is not None:
        document["name"] = request.name
    try:
        changed = parse_job_spec(document)
    except SpecError as error:
        raise InvalidRequestError.of(_in_request(error.problems)) from None
    if (named := changed.checkpoint.start_from) is not None:
        detail = f"{named!r}, but a fork starts from its checkpoint; legal: no value"
        raise InvalidRequestError.at("/changes/checkpoint/start_from", detail)
    return changed


def _merged(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a JSON merge patch (RFC 7396) applied."""
    merged = dict(document)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            before = merged.get(name)
            merged[name] = _merged(before if isinstance(before, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged


def _check_place(prepared: PreparedFork) -> None:
    """Refuse a storage root other than the checkpoint's, and a job without steps left to train."""
    source, spec = prepared.source, prepared.spec
    if spec.checkpoint.root != source.root:
        raise InvalidRequestError.at(
            "/changes/checkpoint/root",
            f"{spec.checkpoint.root!r}, but the checkpoint lies in {source.root!r}",
        )
    if prepared.start_step >= spec.training.steps:
        raise InvalidRequestError.at(
            "/changes/training/steps",
            f"steps={spec.training.steps}, but {source.id} stands at step {source.step} already; "
            "give more steps, or leave counters out of parts",
        )


def _preview(prepared: PreparedFork) -> ForkPreview:
    source = prepared.source
    assert isinstance(source.manifest, Manifest), "a program's checkpoint is refused before"
    state = source.manifest.train_state
    start = start_state(state, prepared.parts, dataset_digest=state.data.dataset_digest)
    return ForkPreview(
        plan=prepared.plan,
        name=prepared.spec.name,
        checkpoint_id=source.id,
        step=source.step,
        start_step=start.step,
        parts=prepared.parts,
        guarantees=guarantees(
            source.spec,
            prepared.spec,
            step=source.step,
            position=state.data.position,
            parts=prepared.parts,
        ),
    )


def _in_request(problems: list[Problem] | tuple[Problem, ...]) -> list[Problem]:
    """Return the problems of the new spec, each pointing at the field of the request."""
    return [Problem(pointer=f"/changes{p.pointer}", detail=p.detail) for p in problems]
