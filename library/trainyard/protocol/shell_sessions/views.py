"""Request bodies, views and events of commands in a running attempt."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, model_validator

from trainyard.base.model_base import RecordModel, SpecModel
from trainyard.base.names import NAME
from trainyard.protocol.event_kinds import EventData
from trainyard.protocol.shell_sessions.messages import (
    BYTES,
    INPUT_BYTES,
    MAX_WORDS,
    Offset,
    Terminal,
    Word,
)

MAX_SECONDS = 86_400.0
"""Maximum time limit of a command."""


class ShellRequest(SpecModel):
    """Body of a request for a command in a running attempt."""

    argv: Annotated[tuple[Word, ...], Field(max_length=MAX_WORDS)] = ()
    """Command, word by word; no shell parses it. If empty, the node's shell, which needs a
    terminal."""
    node: Annotated[str, Field(pattern=NAME, max_length=100)] | None = None
    """Node of the attempt on which the command runs. When absent, the node of `rank`; without
    `rank`, the first node."""
    rank: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Global rank. The command runs on the node of this rank, with the rank's `RANK` and
    `LOCAL_RANK`."""
    terminal: Terminal | None = None
    """Terminal of the person; if absent, the command uses pipes."""
    seconds: Annotated[float, Field(ge=1, le=MAX_SECONDS)] = 3600.0
    """Time limit of the command, after which the supervisor ends it."""

    @model_validator(mode="after")
    def _command_or_terminal(self) -> Self:
        if not self.argv and self.terminal is None:
            raise ValueError("argv is empty, and a shell needs a terminal; name a command")
        if self.argv and not self.argv[0]:
            raise ValueError("argv[0] is empty; name a program")
        return self


class ShellView(RecordModel):
    """A command in an attempt."""

    id: str
    """Id of the command."""
    job_id: str
    """Id of the job."""
    attempt: int
    """Number of the attempt."""
    node: str
    """Node on which the command runs."""
    rank: int | None
    """Global rank of the command's environment."""
    argv: tuple[str, ...]
    """Command, word by word; if empty, the node's shell."""
    created_by: str
    """Person who requested the command."""
    created_at: datetime
    """Time of the request."""
    started_at: datetime | None
    """Time at which the node first reported the command."""
    ended_at: datetime | None
    """Time at which the command ended."""
    exit_code: int | None
    """Exit code, negative for a signal. Absent while the command runs, if the command did not
    start, and if its end is unknown."""
    failure: str | None
    """Reason why the command did not start, or why its end is unknown."""


class ShellOutput(RecordModel):
    """Output of a command."""

    model_config = BYTES

    start: int
    """Offset of the first byte of `content`."""
    content: bytes
    """Bytes of output, in base64."""
    shell: ShellView
    """State of the command. The output is complete once the command has ended and `content` is
    empty."""


class ShellInput(SpecModel):
    """Input of a command; a repeated request has no effect."""

    model_config = BYTES

    start: Offset = 0
    """Offset of the first byte of `content`."""
    content: Annotated[bytes, Field(max_length=INPUT_BYTES)] = b""
    """Bytes of input, in base64."""
    end: bool = False
    """Whether `content` is the end of the input, so that the command then reads end-of-file."""
    terminal: Terminal | None = None
    """Terminal of the person, if its size has changed."""


class ShellInputStored(RecordModel):
    """Reply to input, with the amount of stored input."""

    stored: int
    """Offset after the last stored byte; the sender must resend later bytes."""


class ShellOpened(EventData):
    """A person requested a command in the attempt."""

    shell_id: str
    """Id of the command."""
    argv: tuple[str, ...]
    """Command, with masked credentials in URLs; if empty, the node's shell."""
    rank: int | None = None
    """Global rank of the command's environment."""


class ShellClosed(EventData):
    """A command in the attempt has ended."""

    shell_id: str
    """Id of the command."""
    exit_code: int | None = None
    """Exit code, negative for a signal."""
    failure: str | None = None
    """Reason why the command did not start."""
