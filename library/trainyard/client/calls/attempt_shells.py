"""The SDK's calls about commands in running attempts."""

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
    """Calls of `Client` about commands in running attempts."""

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

        Read its output within a minute, and keep reading: otherwise the server ends the command.

        Args:
            job_id: the job.
            argv: the command, word by word; no shell parses it. With a terminal it may be empty.
            node: the node; by default the node of `rank`, or the first.
            rank: global rank for the command's `RANK` and `LOCAL_RANK`.
            terminal: terminal of the person; by default the command has pipes.
            seconds: time limit.

        Raises:
            InvalidRequestError: the server runs no code of people, or the attempt lacks the node.
            ConflictError: the job does not run, or has too many commands.
        """
        body = ShellRequest(
            argv=tuple(argv), node=node, rank=rank, terminal=terminal, seconds=seconds
        )
        return self.transport.post(ShellView, f"/jobs/{job_id}/shells", body)

    def shell_output(
        self, job_id: str, shell_id: str, *, start: int = 0, wait_seconds: float = MAX_WAIT_SECONDS
    ) -> ShellOutput:
        """Wait for output from an offset on; the server drops the output before it."""
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
        """Send input; return the offset up to which it is stored. Send the rest again later.

        Raises:
            ConflictError: the command has ended.
        """
        body = ShellInput(start=start, content=content, end=end, terminal=terminal)
        path = f"/jobs/{job_id}/shells/{shell_id}/input"
        return read(ShellInputStored, self.transport.send("PUT", path, body=body)).stored

    def close_shell(self, job_id: str, shell_id: str) -> ShellView:
        """End a command."""
        return self.transport.post(ShellView, f"/jobs/{job_id}/shells/{shell_id}/close")
