"""Calls of the SDK for commands in running attempts."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.client.transport import Transport, read
from trainyard.protocol.shell_sessions.messages import MAX_WAIT_SECONDS, Terminal
from trainyard.protocol.shell_sessions.views import (
    ShellInput,
    ShellInputStored,
    ShellOutput,
    ShellRequest,
    ShellView,
)


class ShellCalls:
    """Calls of `Client` for commands in running attempts."""

    transport: Transport
    """Sends the requests."""

    def open_shell(
        self,
        job_id: str,
        argv: Sequence[str],
        *,
        node: str | None = None,
        rank: int | None = None,
        terminal: Terminal | None = None,
        seconds: float = 3600.0,
    ) -> ShellView:
        """Run a command on a node of the current attempt, in the environment of its ranks.

        Read the command's output within a minute, and continue to read; otherwise the server ends
        the command.

        Args:
            job_id: id of the job.
            argv: the command and its arguments; no shell parses them. With a terminal, `argv` may
            be empty.
            node: the node; by default the node of `rank`, or the attempt's first node.
            rank: global rank whose `RANK` and `LOCAL_RANK` the command gets.
            terminal: the person's terminal; by default the command has pipes.
            seconds: time limit of the command.

        Raises:
            ForbiddenError: you neither submitted the job nor use the admin token.
            InvalidRequestError: the server runs no user code, or the attempt does not have the
                node or the rank.
            ConflictError: the job is not running, or too many commands are running.
        """
        body = ShellRequest(
            argv=tuple(argv), node=node, rank=rank, terminal=terminal, seconds=seconds
        )
        return self.transport.post(ShellView, f"/jobs/{job_id}/shells", body)

    def shell_output(
        self, job_id: str, shell_id: str, *, start: int = 0, wait_seconds: float = MAX_WAIT_SECONDS
    ) -> ShellOutput:
        """Wait for output from offset `start` on; the server drops the output before `start`."""
        path, query = f"/jobs/{job_id}/shells/{shell_id}/output", {"start": start}
        waiting = {**query, "wait_seconds": wait_seconds}
        return self.transport.get(ShellOutput, path, waiting)

    def send_shell_input(
        self,
        job_id: str,
        shell_id: str,
        content: bytes = b"",
        *,
        start: int,
        end: bool = False,
        terminal: Terminal | None = None,
    ) -> int:
        """Send input, and return the offset up to which the server stored it.

        The caller must send the input after this offset again.

        Raises:
            ConflictError: the command has ended.
        """
        body = ShellInput(start=start, content=content, end=end, terminal=terminal)
        path = f"/jobs/{job_id}/shells/{shell_id}/input"
        return read(ShellInputStored, self.transport.send("PUT", path, body=body)).stored

    def close_shell(self, job_id: str, shell_id: str) -> ShellView:
        """End a command, and return its shell."""
        return self.transport.post(ShellView, f"/jobs/{job_id}/shells/{shell_id}/close")
