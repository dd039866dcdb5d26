"""The interface of node sources to the provisioner: five short calls of one engine.

Each kind of engine is one module that implements `NodeSource`. Calls block, have time limits, and
are repeated after errors: each must be harmless when it is made twice.
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
"""Time limit of one command of an engine."""
SHOWN_CHARACTERS = 1500
"""Limit of the characters of a command's errors in a message."""

SSH_FAILED = 255
"""Exit status of ssh itself; any other is the remote command's."""


class EngineOptions(BaseModel):
    """Base of the options of one kind of engine: the table `options` of a source."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@dataclass(frozen=True)
class Place:
    """The facts of a source that every engine needs."""

    name: str
    """Name of the source."""
    python: str
    """Interpreter on the nodes with the worker and the trainer."""
    folder: Path
    """Folder of the source at the provisioner, for the engine's own files; mode 0700."""


@dataclass(frozen=True)
class Shape:
    """Nodes of one request."""

    nodes: int
    slots: int
    """Slots of each node."""
    device: Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Submission:
    """A claimed request, as submitted to the engine."""

    request_id: str
    purpose: Purpose
    shape: Shape
    seconds: float | None
    """Length of the allocation; unlimited when absent."""
    secrets: Path
    """File of mode 0600 with one join secret per line, by the index of the pilot. No argument,
    environment, script or log may contain it."""
    environment: Mapping[str, str]
    """`TRAINYARD_*` settings of the pilots; none of them is a secret."""


class SourceError(Exception):
    """The call failed; the state of its object is unknown."""

    refused: bool = False
    """Whether the refusal is final, so that a repeat is useless."""

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
        """Command that renews the login, on the provisioner's machine."""


class CommandTimeout(SourceError):  # noqa: N818 - a condition, not a mistake
    """A command did not end within its limit."""


@dataclass(frozen=True)
class EngineListing:
    """Jobs that an engine listed."""

    jobs: Sequence[EngineJob]
    login: LoginNeeded | None = None
    """Set if a part of the engine needs a login by a person; its jobs are `unknown`."""


class NodeSource(Protocol):
    """An engine that supplies nodes. Every call raises `SourceError` when it learned nothing."""

    def submit(self, submission: Submission) -> str:
        """Start the engine's job of a request unless it exists; return the engine's id of the job.

        It first searches for a job of that name: an earlier call may have started it, and its
        answer may have been lost. Calls for one request never run concurrently.
        """
        ...

    def list(self) -> EngineListing:
        """Return every job of this source with the name of a request, wanted or not."""
        ...

    def status(self, request_ids: Sequence[str]) -> Sequence[EngineJob]:
        """Return the jobs of these requests; those unknown to the engine are omitted."""
        ...

    def cancel(self, request_id: str) -> None:
        """Make the engine end the job of a request; harmless without a job."""
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
    """Run a command without a shell, and return its result, whatever its exit status.

    The child gets no `TRAINYARD_*` variable: the provisioner's own settings hold secrets.

    Args:
        command: program and arguments; never secrets, as other users can read them.
        stdin: input of the command.
        seconds: time limit, after which the command and all of its session are killed.
        variables: additional environment variables.
        kept_bytes: limit of the returned bytes of each output; all when negative.

    Raises:
        CommandTimeout: it did not end in time.
        SourceError: the program does not exist.
    """
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TRAINYARD_")}
    text = stdin if isinstance(stdin, bytes) else None
    # Files instead of pipes: a process left behind, such as a master connection of ssh, keeps
    # stderr open, and a read from a pipe would wait for it.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if text is not None else stdin,  # type: ignore[arg-type]
                stdout=output,
                stderr=errors,
                env={**clean, **(variables or {})},
                # Ctrl-C at the provisioner interrupts no call, and ssh finds no terminal from which
                # to read a password.
                start_new_session=True,
            )
        except OSError as error:
            raise SourceError(f"{command[0]} cannot be run: {error.strerror or error}") from error
        try:
            process.communicate(text, timeout=seconds)
        except BaseException as error:
            if process.returncode is None:  # not reaped: the group's pid is not reused
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
    """Run a command on the machine that `ssh` reaches, without prompting a person.

    Args:
        ssh: program, options and host, such as `["ssh", "login1"]`.
        command: program and arguments; they are quoted for the remote shell.
        stdin: input of the command.
        kept_bytes: limit of the returned bytes of each output; all when negative.

    Raises:
        LoginNeeded: the machine accepts no key.
        SourceError: the machine is unreachable, or the command did not end in time.
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
    """Return a command's stderr, or else its stdout, printable and of limited length."""
    text = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
    return printable(text)[-SHOWN_CHARACTERS:] or f"exit status {done.returncode}"


def printable(text: str) -> str:
    """Return an engine's text without control characters, except tabs and line breaks."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
