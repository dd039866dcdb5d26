"""Messages between the server and a supervisor about commands in a running attempt."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from trainyard.base.ids import ID_PATTERN
from trainyard.base.model_base import RecordModel, Text

MAX_WORDS, MAX_WORD = 256, 8192
"""Most words of a command, and most characters of a word."""
WINDOW_BYTES = 256 * 1024
"""Most bytes of unread output that the server holds; beyond them the command waits, as at a full
pipe."""
INPUT_BYTES = 64 * 1024
"""Most bytes of input that the server holds before the command reads them."""
MAX_WAIT_SECONDS = 20.0
"""Longest wait of one request for output or input."""

Word = Annotated[Text, Field(max_length=MAX_WORD)]
Offset = Annotated[int, Field(ge=0, lt=2**62)]
Wait = Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)]
BYTES = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
"""Configuration for bytes as base64 in JSON."""


class Terminal(RecordModel):
    """A terminal of the person."""

    rows: Annotated[int, Field(ge=1, le=10_000)] = 24
    """Lines."""
    columns: Annotated[int, Field(ge=1, le=10_000)] = 80
    """Characters of a line."""
    kind: Annotated[str, Field(pattern=r"^[A-Za-z0-9._+-]{1,64}$")] = "xterm"
    """Value of TERM."""


class ShellOrder(RecordModel):
    """A command for the supervisor to start; repeated until its first report."""

    id: Annotated[str, Field(pattern=ID_PATTERN)]
    """Id."""
    argv: Annotated[tuple[Word, ...], Field(max_length=MAX_WORDS)]
    """The command, word by word; no shell parses it. The node's shell when empty."""
    terminal: Terminal | None = None
    """The person's terminal; without it the command has pipes."""
    rank: Annotated[int, Field(ge=0)] | None = None
    """Global rank that the command names in `RANK` and `LOCAL_RANK`."""


class ShellExit(RecordModel):
    """How a command ended."""

    exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    """Its exit code, negative for a signal; absent when it did not start."""
    failure: Annotated[Text, Field(max_length=2000)] | None = None
    """Why it did not start."""


class ShellOutputMessage(RecordModel):
    """Output of a command, from its supervisor; without content it is only a sign of life."""

    model_config = BYTES

    protocol: int
    """`PROTOCOL` of the sender."""
    start: Offset
    """Offset of the first byte."""
    content: Annotated[bytes, Field(max_length=WINDOW_BYTES)] = b""
    """The bytes of stdout and stderr, in the order in which they were written."""
    exit: ShellExit | None = None
    """The last message: how it ended."""


class ShellOutputReply(RecordModel):
    """The answer: stored offset, and whether the command is still wanted."""

    stored: int
    """Offset after the last stored byte; later bytes must be sent again, later."""
    wanted: bool
    """Whether the command is still wanted; otherwise it is ended."""


class ShellInputRequest(RecordModel):
    """Long poll of a supervisor for input of a command."""

    protocol: int
    """`PROTOCOL` of the sender."""
    start: Offset
    """Offset of the first byte that it needs; earlier bytes were received."""
    wait_seconds: Wait = 0.0
    """Longest time that the server holds the poll while nothing is new."""
    terminal: Terminal | None = None
    """The last terminal that it received; the server answers when it differs."""


class ShellInputReply(RecordModel):
    """Input of a command."""

    model_config = BYTES

    content: bytes = b""
    """Bytes from `start` on."""
    end: bool = False
    """Whether the input ends here."""
    terminal: Terminal | None = None
    """The current terminal."""
    wanted: bool = True
    """Whether the command is still wanted; otherwise it is ended."""
