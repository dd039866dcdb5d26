"""Messages between the server and a supervisor about commands in a running attempt."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from trainyard.base.ids import ID_PATTERN
from trainyard.base.model_base import RecordModel, Text

MAX_WORDS, MAX_WORD = 256, 8192
"""Maximum number of words in a command, and of characters in a word."""
WINDOW_BYTES = 256 * 1024
"""Maximum size of unread output that the server holds, in bytes. At this size the command blocks,
as a write to a full pipe does."""
INPUT_BYTES = 64 * 1024
"""Maximum size of input that the server holds until the command reads the input, in bytes."""
MAX_WAIT_SECONDS = 20.0
"""Maximum wait of one request for output or input."""

Word = Annotated[Text, Field(max_length=MAX_WORD)]
Offset = Annotated[int, Field(ge=0, lt=2**62)]
Wait = Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)]
BYTES = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
"""Model configuration that encodes bytes as base64 in JSON."""


class Terminal(RecordModel):
    """Terminal of the person who runs the command."""

    rows: Annotated[int, Field(ge=1, le=10_000)] = 24
    """Number of lines."""
    columns: Annotated[int, Field(ge=1, le=10_000)] = 80
    """Number of characters per line."""
    kind: Annotated[str, Field(pattern=r"^[A-Za-z0-9._+-]{1,64}$")] = "xterm"
    """Type of the terminal, the value of `TERM`."""


class ShellOrder(RecordModel):
    """A command that the supervisor must start; sent until the supervisor first reports it."""

    id: Annotated[str, Field(pattern=ID_PATTERN)]
    """Id of the command."""
    argv: Annotated[tuple[Word, ...], Field(max_length=MAX_WORDS)]
    """Command, word by word; no shell parses it. If empty, the node's shell."""
    terminal: Terminal | None = None
    """Terminal of the person; if absent, the command uses pipes."""
    rank: Annotated[int, Field(ge=0)] | None = None
    """Global rank of the command's environment (`RANK` and `LOCAL_RANK`)."""


class ShellExit(RecordModel):
    """End of a command."""

    exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    """Exit code, negative for a signal; absent if the command did not start."""
    failure: Annotated[Text, Field(max_length=2000)] | None = None
    """Reason why the command did not start."""


class ShellOutputMessage(RecordModel):
    """Output of a command, from its supervisor; a message without content only shows that the
    command runs."""

    model_config = BYTES

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    start: Offset
    """Offset of the first byte of `content`."""
    content: Annotated[bytes, Field(max_length=WINDOW_BYTES)] = b""
    """Bytes of stdout and stderr, in the order in which they were written."""
    exit: ShellExit | None = None
    """End of the command; only in the last message."""


class ShellOutputReply(RecordModel):
    """Reply to output: the stored offset, and whether the command is still wanted."""

    stored: int
    """Offset after the last stored byte; the sender must resend later bytes."""
    wanted: bool
    """Whether the command is still wanted; if not, the supervisor ends it."""


class ShellInputRequest(RecordModel):
    """Long poll by a supervisor for the input of a command."""

    protocol: int
    """Version of the protocol (`PROTOCOL`) of the sender."""
    start: Offset
    """Offset of the first byte that the supervisor still needs."""
    wait_seconds: Wait = 0.0
    """Maximum time for which the server waits for a change before it replies."""
    terminal: Terminal | None = None
    """Terminal that the supervisor received last; if the terminal has changed, the server replies
    immediately."""


class ShellInputReply(RecordModel):
    """Input of a command."""

    model_config = BYTES

    content: bytes = b""
    """Bytes of input from `start` on."""
    end: bool = False
    """Whether the input ends after `content`."""
    terminal: Terminal | None = None
    """Current terminal of the person."""
    wanted: bool = True
    """Whether the command is still wanted; if not, the supervisor ends it."""
