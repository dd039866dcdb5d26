"""What a source of nodes is to the provisioner: five short calls of one engine.

Each kind of engine is one module that implements `NodeSource`. Calls block, have time limits, and
are repeated after errors: every one must be harmless when it is made twice.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from trainyard.protocol.node_sources.messages import EngineJob, Purpose

COMMAND_SECONDS = 30.0
"""Longest time of one command of an engine."""
SHOWN_CHARACTERS = 1500
"""Most characters of a command's errors that a message repeats."""

SSH_FAILED = 255
"""Exit status of ssh itself; every other one is the remote command's."""


class EngineOptions(BaseModel):
    """Base of the options of one kind of engine: the table `options` of a source."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@dataclass(frozen=True)
class Place:
    """What every engine needs to know of its source."""

    name: str
    """Name of the source."""
    python: str
    """Interpreter on the nodes that has the worker and the trainer."""
    folder: Path
    """Folder of the source at the provisioner, for files of the engine's own; mode 0700."""


@dataclass(frozen=True)
class Shape:
    """Nodes of one request."""

    nodes: int
    slots: int
    """Slots of each node."""
    device: Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Submission:
    """A claimed request, as the engine is asked for it."""

    request_id: str
    purpose: Purpose
    shape: Shape
    seconds: float | None
    """Length of the allocation; without an end when absent."""
    secrets: Path
    """File of mode 0600 with one join secret a line, by the index of the pilot. Its content goes
    into no argument, environment, script or log."""
    environment: Mapping[str, str]
    """`TRAINYARD_*` settings of the pilots; none of them is a secret."""


class SourceError(Exception):
    """The call failed; what it was about is unknown."""

    refused: bool = False
    """Whether the engine refuses for good, so that a repeat is useless."""

    @classmethod
    def refusal(cls, message: str) -> SourceError:
        """Return the error of a final refusal."""
        error = cls(message)
        error.refused = True
        return error


class LoginNeeded(SourceError):  # noqa: N818 - a condition that a person ends
    """The route to the engine needs a person."""

    def __init__(self, message: str, *, command: str) -> None:
        super().__init__(message)
        self.command = command
        """Command that renews the login, at the provisioner's machine."""


class CommandTimeout(SourceError):  # noqa: N818 - a condition, not a mistake
    """A command did not end within its limit."""


@dataclass(frozen=True)
class EngineListing:
    """What an engine listed."""

    jobs: Sequence[EngineJob]
    login: LoginNeeded | None = None
    """Set where a part of the engine needs a person; the jobs there are `unknown`."""


class NodeSource(Protocol):
    """An engine that supplies nodes. Every call raises `SourceError` when it learned nothing."""

    def submit(self, submission: Submission) -> str:
        """Start the engine's job of a request unless it exists; return the engine's id of it.

        Looks for a job of that name first: an earlier call may have started it, and its answer may
        have been lost. No two calls for one request run at once.
        """
        ...

    def list(self) -> EngineListing:
        """Return every job of this source whose name is that of a request, wanted or not."""
        ...

    def status(self, request_ids: Sequence[str]) -> Sequence[EngineJob]:
        """Return the jobs of these requests; one that the engine does not know is left out."""
        ...

    def cancel(self, request_id: str) -> None:
        """Have the engine end the job of a request; harmless where there is none."""
        ...

    def explain(self, request_id: str) -> str:
        """Return in the engine's words why a request waits, or how it ended."""
        ...


def run_command(
    command: Sequence[str],
    *,
    stdin: bytes | IO[bytes] = b"",
    seconds: float = COMMAND_SECONDS,
    variables: Mapping[str, str] | None = None,
    kept_bytes: int = -1,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command without a shell and return how it ended, whatever its exit status.

    The child gets no `TRAINYARD_*` variable: the provisioner's own settings hold secrets.

    Args:
        command: program and arguments; none of them may be a secret, as others can read them.
        stdin: what the command reads.
        seconds: time limit; the command is then killed with all that it started in its session.
        variables: environment variables in addition.
        kept_bytes: most bytes of each output that are returned; all when negative.

    Raises:
        CommandTimeout: it did not end in time.
        SourceError: there is no such program.
    """
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TRAINYARD_")}
    text = stdin if isinstance(stdin, bytes) else None
    # Files and no pipes: what a command leaves behind, such as ssh a master connection, keeps
    # stderr, and a pipe would end with it.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if text is not None else stdin,  # type: ignore[arg-type]
                stdout=output,
                stderr=errors,
                env={**clean, **(variables or {})},
                # Ctrl-C at the provisioner ends no call halfway, and ssh finds no terminal to read
                # a password from.
                start_new_session=True,
            )
        except OSError as error:
            raise SourceError(f"{command[0]} cannot be run: {error.strerror or error}") from error
        try:
            process.communicate(text, timeout=seconds)
        except BaseException as error:
            if process.returncode is None:  # not reaped: the group has no other's pid
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                message = f"{command[0]} did not end within {seconds:.0f} s"
                raise CommandTimeout(message) from error
            raise
        written = []
        for file in (output, errors):
            file.seek(0)
            written.append(file.read(kept_bytes))
    return subprocess.CompletedProcess(command, process.returncode, *written)


def run_over_ssh(
    ssh: Sequence[str], command: Sequence[str], *, stdin: bytes = b"", kept_bytes: int = -1
) -> subprocess.CompletedProcess[bytes]:
    """Run a command on the machine that `ssh` reaches, without a question to a person.

    Args:
        ssh: program, options and host, such as `["ssh", "login1"]`.
        command: program and arguments; they are quoted for the remote shell.
        stdin: what the command reads.
        kept_bytes: most bytes of each output that are returned; all when negative.

    Raises:
        LoginNeeded: the machine accepts no key.
        SourceError: the machine is not reached, or the command did not end in time.
    """
    quick = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
    words = [ssh[0], *quick, *ssh[1:], shlex.join(command)]
    done = run_command(words, stdin=stdin, kept_bytes=kept_bytes)
    if done.returncode == SSH_FAILED:
        text = error_text(done)
        if "denied" in text or "authentication" in text.lower():
            raise LoginNeeded(text, command=shlex.join([ssh[0], "-MNf", *ssh[1:]]))
        raise SourceError(text)
    return done


def error_text(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return what a command wrote to stderr, else to stdout, printable and of bounded length."""
    text = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
    return printable(text)[-SHOWN_CHARACTERS:] or f"exit status {done.returncode}"


def printable(text: str) -> str:
    """Return a text of an engine without control characters but those of lines."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
