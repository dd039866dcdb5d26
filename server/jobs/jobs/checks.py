"""Checks whether a valid spec can run on this server and its nodes."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlalchemy import Connection, exists, func, select

from server.api.http.path_params import CHECKPOINT_ID
from server.cluster.named_secrets.secret_uses import SecretUse, check_use
from server.cluster.projects.service import check_project
from server.core.context import Context
from server.core.database.tables import checkpoints, jobs, nodes
from server.core.errors import InvalidRequestError
from server.core.subject import Actor
from server.core.visibility.scope import Scope
from trainyard.base.ids import is_id
from trainyard.base.problems import Problem, SpecError
from trainyard.base.redaction import MASK
from trainyard.protocol.rest.access import Permission
from trainyard.spec.environment import environment_problems, masked_problems
from trainyard.spec.job import JobSpec
from trainyard.spec.precision import depends_on_hardware, hardware
from trainyard.spec.rules import check_job_spec, own_code
from trainyard.spec.storage_uri import split_place
from trainyard.training.known_devices import Slot


def check_spec(
    context: Context, spec: JobSpec, *, rules: Callable[[JobSpec], None] = check_job_spec
) -> None:
    """Refuse a spec that cannot run here or names an unknown storage root.

    `rules` makes the checks that do not depend on the server. With `check_new_job` as `rules`,
    fields without effect are problems, too.

    Raises:
        InvalidRequestError: the spec has problems; the error names each problem.
    """
    legal = context.settings.roots
    problems = [
        Problem(
            pointer=pointer,
            detail=f"{root!r} is no root of this server; legal: {', '.join(legal)}",
        )
        for pointer, root in _named_roots(spec).items()
        if root not in legal
    ]
    if MASK in spec.model_dump_json():  # rare, and the search for the masked field takes far longer
        problems += masked_problems(spec.model_dump(mode="json"))
    problems += not_allowed(context, spec)
    try:
        rules(spec)
    except SpecError as error:
        problems += error.problems
    if problems:
        raise InvalidRequestError.of(problems)


def not_allowed(context: Context, spec: JobSpec) -> list[Problem]:
    """Return a problem for each part of a spec that runs code, unless the server allows code."""
    if context.settings.allow_code:
        return []
    detail = (
        "this server takes no jobs that bring code of their own; "
        "TRAINYARD_ALLOW_CODE=true, for the server and its workers, allows them"
    )
    problems = [Problem(pointer=pointer, detail=detail) for pointer in own_code(spec)]
    return [*environment_problems(spec.env), *problems]


def check_code(actor: Actor, spec: JobSpec, *, project: str, at: str = "") -> None:
    """Refuse a spec that runs code, unless the actor may run code in the project.

    Code is what a server without `allow_code` refuses, variables of `env` included. Call this
    before the job or its next attempt is stored. `at` is the place of the spec in the request.

    Raises:
        ForbiddenError: the actor lacks `code:run`; the error names each field that brings code.
    """
    if actor.scope.may(Permission.CODE_RUN, project):
        return
    variables = [each.pointer for each in environment_problems(spec.env)]
    if fields := [*own_code(spec), *variables]:
        detail = f"runs code, which needs {Permission.CODE_RUN}"
        problems = [Problem(pointer=f"{at}{each}", detail=detail) for each in fields]
        raise actor.refusal(Permission.CODE_RUN, problems, project=project)


def check_secrets(context: Context, connection: Connection, spec: JobSpec, *, actor: Actor) -> None:
    """Refuse a new job with secrets that do not exist, or that the actor may not use.

    Raises:
        InvalidRequestError: the project does not exist or is hidden, or a secret does not exist.
        ForbiddenError: the actor lacks `secrets:use` in the project.
    """
    use = SecretUse.of_new_job(spec, actor)
    if use.references:
        check_project(connection, spec.project, scope=actor.scope)
        check_use(context, connection, use, actor=actor, token_id=actor.token_id)


def check_world_size(context: Context, world_size: int, *, pointer: str) -> None:
    """Refuse a world size above the setting `max_slots`.

    Raises:
        InvalidRequestError: the world size is too large; the error points at `pointer`.
    """
    most = context.settings.max_slots
    if world_size > most:
        raise InvalidRequestError.at(
            pointer, f"world_size={world_size} is more than TRAINYARD_MAX_SLOTS={most}"
        )


def too_few_slots(connection: Connection, world_size: int, *, pointer: str) -> list[Problem]:
    """Return a warning if nodes are registered, but have fewer slots than the world size."""
    known = connection.scalar(select(func.sum(nodes.c.slots)))
    if known is None or world_size <= known:
        return []
    detail = (
        f"world_size={world_size} is more than the {known} slots of all nodes: the job waits "
        "until more have registered"
    )
    return [Problem(pointer=pointer, detail=detail)]


def check_hardware(connection: Connection, spec: JobSpec) -> None:
    """Refuse a spec if no registered node has hardware that supports the spec.

    The check passes if no node is registered, or if the job needs more slots than all nodes have.

    Raises:
        InvalidRequestError: the spec has problems; the error names each problem.
    """
    if not depends_on_hardware(spec):
        return  # without reading all nodes
    if too_few_slots(connection, spec.resources.world_size, pointer=""):
        return
    if problems := list(hardware(spec, known_slots(connection))):
        raise InvalidRequestError.of(problems)


def check_start(connection: Connection, spec: JobSpec, *, scope: Scope) -> None:
    """Refuse a start from a checkpoint of this server, because its own job may delete it.

    A caller who does not see all projects may name no id of a checkpoint at all: the answer would
    differ for checkpoints of hidden jobs.

    Raises:
        InvalidRequestError: the catalog lists the checkpoint in `checkpoint.start_from`, or may
            list it; or a place is in the folder of a hidden job (`check_places`).
    """
    check_places(connection, spec, scope=scope)
    start = spec.checkpoint.start_from
    if start is None:
        return
    if not scope.sees_all and re.fullmatch(CHECKPOINT_ID, start.replace("/", ".")):
        detail = (
            f"{start!r} is the id of a checkpoint, which may belong to a job of another project; "
            "legal for you: checkpoints of other programs. Fork a checkpoint that you see instead"
        )
        raise InvalidRequestError.at("/checkpoint/start_from", detail)
    table, named = checkpoints.c, start.replace("/", ".")
    listed = exists().where(table.id == named, table.root == spec.checkpoint.root)
    if connection.scalar(select(listed)):
        detail = (
            f"{start!r} is a checkpoint of a job on this server, and retention may delete it; "
            f"legal: checkpoints of other programs and servers. Fork {named} instead"
        )
        raise InvalidRequestError.at("/checkpoint/start_from", detail)


def check_places(connection: Connection, spec: JobSpec, *, scope: Scope) -> None:
    """Refuse files and folders below the folder of a job that the caller does not see.

    Such a folder, and the name of an export, begins with the id of the job. A job that does not
    exist counts as hidden.

    Raises:
        InvalidRequestError: the spec names such a folder; the error names the field.
    """
    if scope.sees_all:
        return
    named = {pointer: _jobs_in(place) for pointer, place in _places(spec).items()}
    ids = {each for some in named.values() for each in some}
    if not ids:
        return
    visible = select(jobs.c.id).where(jobs.c.id.in_(ids), scope.filter(jobs.c.project))
    hidden = ids.difference(connection.scalars(visible))
    problems = [
        Problem(
            pointer=pointer,
            detail=f"{each} belongs to no job that you see; legal: folders of jobs that you see, "
            "and folders that no job has",
        )
        for pointer, some in named.items()
        for each in some
        if each in hidden
    ]
    if problems:
        raise InvalidRequestError.of(problems)


def _jobs_in(place: str) -> list[str]:
    """Return the ids of jobs with which folders or files of a place begin."""
    parts = (part.partition(".")[0] for part in place.partition(":")[2].split("/"))
    return [part for part in parts if is_id(part)]


def known_slots(connection: Connection) -> set[Slot]:
    """Return the kinds of slots on the registered nodes."""
    return {
        Slot(found.device, found.device_name, found.device_memory_bytes)
        for found in connection.scalars(select(nodes.c.hardware))
    }


def roots_of(spec: JobSpec) -> tuple[str, ...]:
    """Return the names of the storage roots that a node needs to run the job."""
    return tuple(dict.fromkeys(_named_roots(spec).values()))


def _named_roots(spec: JobSpec) -> dict[str, str]:
    """Return the names of storage roots in the spec, by the field that contains them."""
    given = {pointer: split_place(place)[0] for pointer, place in _places(spec).items()}
    return {"/checkpoint/root": spec.checkpoint.root} | given


def _places(spec: JobSpec) -> dict[str, str]:
    """Return the files and folders in storage roots that the spec names, by field."""
    places = (
        {
            "/data/path": spec.data.path,
            "/data/tokenizer_path": spec.data.tokenizer_path,
            "/model/initial_weights": spec.model.initial_weights,
            "/model/code": spec.model.code,
            "/model/hugging_face": spec.model.hugging_face,
        }
        if spec.program is None
        else spec.program.places
    )
    return {pointer: place for pointer, place in places.items() if place}
