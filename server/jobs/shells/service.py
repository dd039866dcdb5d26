"""Functions for people on commands in running attempts: request, output, input, end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from server.api.auth.endings import write_as
from server.cluster.named_secrets.secret_uses import SecretUse
from server.core.context import Context
from server.core.database.metric_and_log_tables import shells
from server.core.database.rows import Attempt, AttemptNode, Job
from server.core.database.tables import attempts, jobs
from server.core.errors import ConflictError, ForbiddenError, InvalidRequestError, NotFoundError
from server.core.events.store import NewEvent, append_event
from server.core.lifecycle import lock_own_job
from server.core.subject import ADMIN_USER_ID, Actor
from server.jobs.attempts.launch import newest_launch
from server.jobs.shells.rows import Shell, locked_shell, no_command, read_shell
from trainyard.base.problems import Problem
from trainyard.base.redaction import hide_credentials
from trainyard.protocol.rest.access import Permission
from trainyard.protocol.shell_sessions.messages import INPUT_BYTES
from trainyard.protocol.shell_sessions.views import (
    ShellInput,
    ShellInputStored,
    ShellOpened,
    ShellOutput,
    ShellRequest,
    ShellView,
)
from trainyard.protocol.states import AttemptNodeState, JobState

MAX_OPEN, MAX_OPEN_OF_PERSON = 4, 16
"""Maximum number of concurrent commands per attempt and per person; each costs two long polls."""
KEPT = timedelta(days=2)
"""Time after which the row of a command is deleted. A command takes at most half this time."""
FORGOTTEN_AT_ONCE = 500
CONTACT = timedelta(seconds=5)
"""A person's request updates the stored time of contact only if that time is older than this."""
NO_CODE = (
    "this server runs no code that people bring; TRAINYARD_ALLOW_CODE=true, for the server and its "
    "workers, allows it"
)


def open_shell(context: Context, job_id: str, request: ShellRequest, *, actor: Actor) -> ShellView:
    """Store a command for a node of the current attempt.

    The command could change data of later attempts, such as caches. So the attempt becomes tainted,
    and other jobs reuse nothing from it.

    Raises:
        NotFoundError: there is no such job.
        UnauthenticatedError: the actor's token is no longer valid.
        ForbiddenError: the actor lacks `code:run`, or neither submitted the job nor is an admin.
        InvalidRequestError: the server does not allow people's code, or the node or the rank is not
            part of the attempt.
        ConflictError: the job does not run, or there are too many concurrent commands.
    """
    shell_id, now = context.new_id(), context.now()
    with write_as(context, actor) as connection:
        may = Permission.SHELL_RUN
        lock_own_job(connection, job_id, scope=actor.scope, permission=may)
        if not context.settings.allow_code:
            raise InvalidRequestError.at("/argv", NO_CODE)
        job = Job.one(connection, Job.select().where(jobs.c.id == job_id))
        if not actor.may_act_for(job.owner_id, job.token_id):
            raise ForbiddenError(
                f"a command sees the secrets of its job: only {_owner(job)}, and the admin token, "
                "may run one in it"
            )
        _check_secrets(job, actor)
        if not actor.scope.may(Permission.CODE_RUN, job.project):
            problem = Problem(
                pointer="/argv", detail=f"runs code, which needs {Permission.CODE_RUN}"
            )
            raise actor.refusal(Permission.CODE_RUN, [problem], project=job.project)
        if job.state != JobState.RUNNING:
            raise ConflictError(f"{job.name} is {job.state}, not running")
        launch = newest_launch(connection, job_id)
        _check_account(launch.attempt, actor)
        node = _node(request, launch.nodes)
        _refuse_another(context, connection, attempt_id=launch.attempt.id, actor=actor)
        attempt = update(attempts).where(attempts.c.id == launch.attempt.id)
        connection.execute(attempt.values(tainted=True))
        row = {
            "id": shell_id,
            "attempt_id": launch.attempt.id,
            "node": node,
            "rank": request.rank,
            "argv": request.argv,
            "terminal": request.terminal,
            "seconds": request.seconds,
            "created_by": actor.name,
            "token_id": actor.token_id,
            "user_id": actor.user_id,
            "session_id": actor.session_id,
            "created_at": now,
            "client_at": now,
        }
        connection.execute(insert(shells).values(row))
        argv = tuple(map(hide_credentials, request.argv))
        words = shlex.join(argv) or "a shell"
        own = actor.made(job.owner_id, job.token_id)
        why = "the owner of the job" if own else f"an admin, in the job of {job.created_by}"
        event = NewEvent(
            ShellOpened(shell_id=shell_id, argv=argv, rank=request.rank),
            actor,
            launch.subject.on(node),
            f"{actor.name}, {why}, runs on {node}: {words}",
        )
        append_event(context, connection, event)
        return read_shell(connection, shell_id).view(now)


def _check_account(attempt: Attempt, actor: Actor) -> None:
    """Refuse a command under the account of another user, such as after a transfer of the job."""
    if attempt.account is None or actor.user_id == attempt.owner_id:
        return
    if not actor.may(Permission.USERS_ADMIN):
        raise ForbiddenError(
            f"attempt {attempt.number} runs under the Unix account {attempt.account} of the job's "
            "former owner; resume the job to run it under your own account"
        )


def _check_secrets(job: Job, actor: Actor) -> None:
    """Refuse a command that could read secrets of another person, or that needs `secrets:use`."""
    use = SecretUse.of_job(job)
    if not use.references:
        return
    if not actor.scope.may(Permission.SECRETS_USE, job.project):
        problem = Problem(pointer="/argv", detail=f"reads secrets: {', '.join(use.references)}")
        raise actor.refusal(Permission.SECRETS_USE, [problem], project=job.project)
    if use.of_owner and not actor.made(job.owner_id, job.token_id):
        named = ", ".join(f"{name}={each.secret!r}" for name, each in use.of_owner.items())
        raise ForbiddenError(
            f"the job gets secrets of its owner ({named}), which a command could read: only the "
            "owner may run one in it"
        )


def _owner(job: Job) -> str:
    """Return who may run commands in a job, as words."""
    if job.owner_id == ADMIN_USER_ID:
        return f"the token with which {job.created_by} submitted {job.name}"
    return f"the owner of {job.name}"


def _node(request: ShellRequest, shares: Sequence[AttemptNode]) -> str:
    """Return the node on which a request runs; the node must belong to the attempt.

    Raises:
        InvalidRequestError: the node or the rank is not part of the attempt, or the rank is on
            another node.
        ConflictError: the node's share has ended.
    """
    of_ranks = [share.node for share in shares for _ in share.slots]
    by_name = {share.node: share for share in shares}
    name, rank = request.node or shares[0].node, request.rank
    if rank is not None:
        if rank >= len(of_ranks):
            raise InvalidRequestError.at("/rank", f"rank={rank} of ranks 0 to {len(of_ranks) - 1}")
        if request.node not in (None, of_ranks[rank]):
            words = f"rank {rank} runs on {of_ranks[rank]}, not on {request.node}"
            raise InvalidRequestError.at("/node", words)
        name = of_ranks[rank]
    if name not in by_name:
        raise InvalidRequestError.at("/node", f"node={name!r} is none of {', '.join(by_name)}")
    share = by_name[name]
    if share.state == AttemptNodeState.ENDED or share.lost_at is not None:
        raise ConflictError(f"the attempt has ended on {name}")
    return name


def _refuse_another(
    context: Context, connection: Connection, *, attempt_id: str, actor: Actor
) -> None:
    recent = shells.c.client_at > context.now() - timedelta(minutes=1)
    goes_on = shells.c.ended_at.is_(None) & recent & shells.c.closed.is_(False)
    for of, most, whose in (
        (shells.c.attempt_id == attempt_id, MAX_OPEN, "in this attempt"),
        (_by(actor), MAX_OPEN_OF_PERSON, f"of {actor.name}"),
    ):
        if (connection.scalar(select(func.count()).where(of, goes_on)) or 0) >= most:
            raise ConflictError(f"{most} commands {whose} are running, the most that are legal")


def _by(actor: Actor) -> ColumnElement[bool]:
    """Return the condition for the commands of a person."""
    if actor.is_of_built_in:
        return shells.c.token_id == actor.token_id
    return shells.c.user_id == actor.user_id


def read_output(
    context: Context, job_id: str, shell_id: str, *, start: int, actor: Actor
) -> ShellOutput:
    """Return the output from an offset on, and drop earlier output.

    Raises:
        NotFoundError: the job has no such command.
        ForbiddenError: another person requested the command.
    """
    now = context.now()
    with context.database.read() as connection:
        shell = _own(read_shell(connection, shell_id), job_id, actor)
    if start > shell.output_start or now - shell.client_at > CONTACT:
        with context.database.write() as connection:
            shell = locked_shell(connection, shell_id)
            read = min(max(start - shell.output_start, 0), len(shell.output))
            kept, first = shell.output[read:], shell.output_start + read
            values = {"client_at": now, "output": kept, "output_start": first}
            connection.execute(update(shells).where(shells.c.id == shell_id).values(**values))
            shell = read_shell(connection, shell_id)
    skipped = max(start - shell.output_start, 0)
    first, content = shell.output_start + skipped, shell.output[skipped:]
    return ShellOutput(start=first, content=content, shell=shell.view(now))


def store_input(
    context: Context, job_id: str, *, shell_id: str, given: ShellInput, actor: Actor
) -> ShellInputStored:
    """Store input from an offset on, as far as it fits; bytes that are already stored are ignored.

    Raises:
        NotFoundError: the job has no such command.
        ForbiddenError: another person requested the command.
        ConflictError: the command has ended.
    """
    now = context.now()
    with write_as(context, actor) as connection:
        shell = _own(locked_shell(connection, shell_id), job_id, actor)
        if (over := shell.over(now)) is not None:
            raise ConflictError(over)
        stored = shell.input_start + len(shell.input)
        values: dict[str, Any] = {"client_at": now}
        if given.start <= stored and not shell.input_ended:
            new = given.content[stored - given.start :][: INPUT_BYTES - len(shell.input)]
            stored += len(new)
            values["input"] = shell.input + new
            values["input_ended"] = given.end and stored >= given.start + len(given.content)
        if given.terminal is not None:
            values["terminal"] = given.terminal
        connection.execute(update(shells).where(shells.c.id == shell_id).values(**values))
    return ShellInputStored(stored=stored)


def close_shell(context: Context, job_id: str, shell_id: str, *, actor: Actor) -> ShellView:
    """Order a command to end; a repeat changes nothing.

    Raises:
        NotFoundError: the job has no such command.
        ForbiddenError: another person requested the command.
    """
    with write_as(context, actor) as connection:
        _own(locked_shell(connection, shell_id), job_id, actor)
        connection.execute(update(shells).where(shells.c.id == shell_id).values(closed=True))
        return read_shell(connection, shell_id).view(context.now())


def forget_shells(context: Context) -> int:
    """Delete at most `FORGOTTEN_AT_ONCE` rows of old commands, and return their number."""
    old = select(shells.c.id).where(shells.c.created_at < context.now() - KEPT)
    some = old.order_by(shells.c.id).limit(FORGOTTEN_AT_ONCE)
    with context.database.write() as connection:
        return connection.execute(delete(shells).where(shells.c.id.in_(some))).rowcount


def _own(shell: Shell, job_id: str, actor: Actor) -> Shell:
    actor.scope.check(shell.project, Permission.SHELL_RUN, missing=no_command(shell.id))
    if shell.job_id != job_id:
        raise NotFoundError(f"job {job_id!r} has no command with the id {shell.id!r}")
    if not actor.made(shell.user_id, shell.token_id):
        raise ForbiddenError(f"{shell.created_by} requested this command; its output is private")
    return shell
