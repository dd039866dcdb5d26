"""The row of a command in a running attempt, and whether the command is over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

from sqlalchemy import Connection, Table, select

from server.core.database.metric_and_log_tables import shells
from server.core.database.rows import TypedRow
from server.core.database.tables import attempt_nodes, attempts, jobs
from server.core.errors import NotFoundError
from trainyard.protocol.shell_sessions.messages import Terminal
from trainyard.protocol.shell_sessions.views import ShellView
from trainyard.protocol.states import AttemptNodeState

START = timedelta(seconds=60)
"""Time within which a node must start a command; a start usually takes seconds."""
AWAY = timedelta(seconds=60)
"""Time without a request from the person after which a command is ended."""


@dataclass(frozen=True, slots=True)
class Shell(TypedRow):
    """A command, with the state of the attempt's share on the command's node."""

    table: ClassVar[Table] = shells
    id: str
    job_id: Annotated[str, attempts.c.job_id]
    project: Annotated[str, jobs.c.project]
    token_id: str | None
    user_id: str | None
    attempt_id: str
    attempt: Annotated[int, attempts.c.number]
    share_state: Annotated[AttemptNodeState, attempt_nodes.c.state]
    lost_at: Annotated[datetime | None, attempt_nodes.c.lost_at]
    node: str
    rank: int | None
    argv: list[str]
    terminal: Terminal | None
    seconds: float
    created_by: str
    created_at: datetime
    client_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    failure: str | None
    closed: bool
    output: bytes
    output_start: int
    input: bytes
    input_start: int
    input_ended: bool

    def over(self, now: datetime) -> str | None:
        """Return the first reason why the command is over; None while the command waits or runs."""
        age = now - self.created_at
        reasons = (
            (self.ended_at is not None, "the command has ended"),
            (self.closed, "the command was closed"),
            (self.share_ended, f"the attempt has ended on {self.node}"),
            (
                self.started_at is None and age > START,
                f"{self.node} did not start the command within {START.seconds} s; workers of "
                "earlier versions cannot run commands",
            ),
            (now - self.client_at > AWAY, f"its output was not read for {AWAY.seconds} s"),
            (age.total_seconds() > self.seconds, f"its time of {self.seconds:g} s is over"),
        )
        return next((reason for holds, reason in reasons if holds), None)

    @property
    def share_ended(self) -> bool:
        """Whether the share has ended or is lost, so that no supervisor reports on the command."""
        return self.share_state == AttemptNodeState.ENDED or self.lost_at is not None

    def view(self, now: datetime) -> ShellView:
        """Return the view for people; a command that no node can end counts as ended."""
        over, ended_at, failure = self.over(now), self.ended_at, self.failure
        unstarted = self.started_at is None and over is not None
        if ended_at is None and (self.share_ended or unstarted):
            ended_at, failure = now, over
        shown = {"argv": tuple(self.argv), "ended_at": ended_at, "failure": failure}
        return ShellView(**self.values_for(ShellView) | shown)


def read_shell(connection: Connection, shell_id: str) -> Shell:
    """Return a command.

    Raises:
        NotFoundError: no command has this id.
    """
    share = attempt_nodes.c
    of_share = (share.attempt_id == shells.c.attempt_id) & (share.node == shells.c.node)
    query = Shell.select().join(attempts, attempts.c.id == shells.c.attempt_id)
    query = query.join(jobs, jobs.c.id == attempts.c.job_id)
    query = query.join(attempt_nodes, of_share).where(shells.c.id == shell_id)
    found = Shell.one_or_none(connection, query)
    if found is None:
        raise no_command(shell_id)
    return found


def no_command(shell_id: str) -> NotFoundError:
    """Return the error for an unknown or hidden command."""
    return NotFoundError(f"no command has the id {shell_id!r}")


def locked_shell(connection: Connection, shell_id: str) -> Shell:
    """Return a command, and lock its row until the transaction ends.

    Raises:
        NotFoundError: no command has this id.
    """
    connection.execute(select(shells.c.id).where(shells.c.id == shell_id).with_for_update())
    return read_shell(connection, shell_id)
