"""Functions for supervisors on commands in running attempts: orders, output, input."""

from __future__ import annotations

import shlex
from typing import Any

from sqlalchemy import Connection, select, update

from server.api.http.worker_protocol import check_protocol
from server.core.context import Context
from server.core.database.metric_and_log_tables import shells
from server.core.errors import NotFoundError
from server.core.events.store import NewEvent, append_event
from server.core.lifecycle import lock_job
from server.core.subject import Actor
from server.jobs.attempts.reports import ReportedShare
from server.jobs.shells.rows import START, Shell, locked_shell, read_shell
from trainyard.base.redaction import hide_credentials
from trainyard.protocol.shell_sessions.messages import (
    WINDOW_BYTES,
    ShellExit,
    ShellInputReply,
    ShellInputRequest,
    ShellOrder,
    ShellOutputMessage,
    ShellOutputReply,
)
from trainyard.protocol.shell_sessions.views import ShellClosed
from trainyard.protocol.worker_messages import OLDEST_REPORTS


def shell_orders(
    context: Context, connection: Connection, share: ReportedShare
) -> tuple[ShellOrder, ...]:
    """Return the commands that the supervisor of a share must start."""
    if not share.has_shells:
        return ()
    query = select(shells.c.id, shells.c.argv, shells.c.terminal, shells.c.rank).where(
        shells.c.attempt_id == share.attempt_id,
        shells.c.node == share.node,
        shells.c.started_at.is_(None),
        shells.c.closed.is_(False),
        shells.c.created_at > context.now() - START,
    )
    return tuple(
        ShellOrder(id=row.id, argv=tuple(row.argv), terminal=row.terminal, rank=row.rank)
        for row in connection.execute(query.order_by(shells.c.id))
    )


def store_output(
    context: Context, share: ReportedShare, *, shell_id: str, message: ShellOutputMessage
) -> ShellOutputReply:
    """Store new output as far as it fits; store the end of the command if the report has it.

    Raises:
        InvalidRequestError: the protocol is not supported.
        NotFoundError: the share has no such command.
    """
    check_protocol(message.protocol, oldest=OLDEST_REPORTS)
    now = context.now()
    with context.database.write() as connection:
        if message.exit is not None:
            # The job is locked before the command's row, because events need the job's lock.
            lock_job(connection, share.job_id)
        shell = _of_share(locked_shell(connection, shell_id), share)
        if shell.ended_at is not None:
            return ShellOutputReply(stored=message.start + len(message.content), wanted=False)
        stored = shell.output_start + len(shell.output)
        values: dict[str, Any] = {} if shell.started_at else {"started_at": now}
        if message.start <= stored and message.content:
            new = message.content[stored - message.start :][: WINDOW_BYTES - len(shell.output)]
            values["output"] = shell.output + new
            stored += len(new)
        if message.exit is not None:
            values |= {"ended_at": now} | message.exit.model_dump()
        if values:
            connection.execute(update(shells).where(shells.c.id == shell_id).values(**values))
        if message.exit is not None:
            append_event(context, connection, _end_of(shell, share, message.exit))
    wanted = message.exit is None and shell.over(now) is None
    return ShellOutputReply(stored=stored, wanted=wanted)


def _end_of(shell: Shell, share: ReportedShare, ended: ShellExit) -> NewEvent:
    how = f"with exit code {ended.exit_code}"
    if ended.exit_code is None:
        how = f"unstarted: {ended.failure}"
    elif ended.exit_code < 0:
        how = f"by signal {-ended.exit_code}"
    words = shlex.join(map(hide_credentials, shell.argv)) or "a shell"
    data = ShellClosed(shell_id=shell.id, exit_code=ended.exit_code, failure=ended.failure)
    message = f"{words} of {shell.created_by} ended on {share.node} {how}"
    return NewEvent(data, Actor(share.node), share.subject.on(share.node), message)


def read_input(
    context: Context, share: ReportedShare, *, shell_id: str, request: ShellInputRequest
) -> ShellInputReply:
    """Return input from an offset on, and drop earlier input.

    Raises:
        InvalidRequestError: the protocol is not supported.
        NotFoundError: the share has no such command.
    """
    check_protocol(request.protocol, oldest=OLDEST_REPORTS)
    with context.database.read() as connection:
        shell = _of_share(read_shell(connection, shell_id), share)
    if request.start > shell.input_start:
        with context.database.write() as connection:
            shell = locked_shell(connection, shell_id)
            read = min(max(request.start - shell.input_start, 0), len(shell.input))
            values = {"input": shell.input[read:], "input_start": shell.input_start + read}
            connection.execute(update(shells).where(shells.c.id == shell_id).values(**values))
            shell = read_shell(connection, shell_id)
    over = shell.over(context.now())
    return ShellInputReply(
        content=shell.input[max(request.start - shell.input_start, 0) :],
        end=shell.input_ended,
        terminal=shell.terminal,
        wanted=over is None,
    )


def is_news(reply: ShellInputReply, request: ShellInputRequest) -> bool:
    """Return whether a reply has anything new for the supervisor."""
    resized = reply.terminal != request.terminal
    return bool(reply.content or reply.end or not reply.wanted or resized)


def _of_share(shell: Shell, share: ReportedShare) -> Shell:
    if (shell.attempt_id, shell.node) != (share.attempt_id, share.node):
        raise NotFoundError(f"this share has no command with the id {shell.id!r}")
    return shell
