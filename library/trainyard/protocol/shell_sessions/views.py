"""Requests and views of commands in a running attempt, and their events."""

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
"""Longest time of a command."""


class ShellRequest(SpecModel):
    """Body of a request for a command in a running attempt."""

    argv: Annotated[tuple[Word, ...], Field(max_length=MAX_WORDS)] = ()
    """The command, word by word; no shell parses it. The node's shell when empty, which needs a
    terminal."""
    node: Annotated[str, Field(pattern=NAME, max_length=100)] | None = None
    """Node of the attempt; when absent, the node of `rank`, else the first node."""
    rank: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Global rank: the command runs on its node, with its `RANK` and `LOCAL_RANK`."""
    terminal: Terminal | None = None
    """The person's terminal; without it the command has pipes."""
    seconds: Annotated[float, Field(ge=1, le=MAX_SECONDS)] = 3600.0
    """Time limit, after which the command is ended."""

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
    """Id."""
    job_id: str
    """Job."""
    attempt: int
    """Number of the attempt."""
    node: str
    """Node that it runs on."""
    rank: int | None
    """Rank in its environment."""
    argv: tuple[str, ...]
    """The command; the node's shell when empty."""
    created_by: str
    """Who requested it."""
    created_at: datetime
    """When."""
    started_at: datetime | None
    """When the node first reported it."""
    ended_at: datetime | None
    """When it ended."""
    exit_code: int | None
    """Its exit code, negative for a signal; absent while it runs, and when it did not start."""
    failure: str | None
    """Why it did not start, or why its end is unknown."""


class ShellOutput(RecordModel):
    """Output of a command."""

    model_config = BYTES

    start: int
    """Offset of the first byte."""
    content: bytes
    """The bytes, in base64."""
    shell: ShellView
    """The command; the output is complete once it has ended and `content` is empty."""


class ShellInput(SpecModel):
    """Input of a command; a repeat is harmless."""

    model_config = BYTES

    start: Offset = 0
    """Offset of the first byte."""
    content: Annotated[bytes, Field(max_length=INPUT_BYTES)] = b""
    """The bytes, in base64."""
    end: bool = False
    """Whether the input ends here: the command reads the end of its input."""
    terminal: Terminal | None = None
    """The terminal, if its size has changed."""


class ShellInputStored(RecordModel):
    """How much input is stored."""

    stored: int
    """Offset after the last stored byte; later bytes must be sent again, later."""


class ShellOpened(EventData):
    """A person requested a command in the attempt."""

    shell_id: str
    """Id of the command."""
    argv: tuple[str, ...]
    """The command, with credentials of URLs masked; the node's shell when empty."""
    rank: int | None = None
    """Rank in its environment."""


class ShellClosed(EventData):
    """A command in the attempt has ended."""

    shell_id: str
    """Id of the command."""
    exit_code: int | None = None
    """Its exit code, negative for a signal."""
    failure: str | None = None
    """Why it did not start."""
