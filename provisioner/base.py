"""The interface between node sources and the provisioner: five short calls to one engine.

Each kind of engine is one module that implements `NodeSource`. Calls block, have time limits, and
are repeated after errors, so a repeated call must do no harm.
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
"""Time limit of one command of an engine, in seconds."""
SHOWN_CHARACTERS = 1500
"""Maximum number of characters that a message quotes from a command's errors."""

SSH_FAILED = 255
"""Exit status of a failure of ssh itself; any other status is the remote command's."""


class EngineOptions(BaseModel):
    """Base class for the options of one kind of engine; a source has them in its table
    `options`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@dataclass(frozen=True)
class Place:
    """Facts about a source that every engine needs."""

    name: str
    """Name of the source."""
    python: str
    """Python interpreter on the nodes; it must be able to import the worker and the trainer."""
    folder: Path
    """Folder for the engine's own files, on the provisioner's machine; its mode is 0700."""


@dataclass(frozen=True)
class Shape:
    """Number and type of the nodes in one request."""

    nodes: int
    slots: int
    """Number of slots per node."""
    device: Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Submission:
    """A claimed request in the form in which it is submitted to the engine."""

    request_id: str
    purpose: Purpose
    shape: Shape
    seconds: float | None
    """Duration of the allocation, in seconds; if None, the duration is unlimited."""
    secrets: Path
    """File of mode 0600 with one join secret per line, in the order of the pilots' indices. No
    argument, environment, script or log may contain a secret.
    """
    environment: Mapping[str, str]
    """`TRAINYARD_*` settings for the pilots; none of them is secret."""


class SourceError(Exception):
    """A call to an engine failed, so the state of the engine's jobs is unknown."""

    refused: bool = False
    """Whether the failure is a final refusal, after which a repeated call is useless."""

    @classmethod
    def refusal(cls, message: str) -> SourceError:
        """Return the error for a final refusal."""
        error = cls(message)
        error.refused = True
        return error


class LoginNeeded(SourceError):  # noqa: N818 - a condition that a person ends
    """The connection to the engine needs a login by a person."""

    def __init__(self, message: str, *, command: str) -> None:
        super().__init__(message)
        self.command = command
        """Command that renews the login on the provisioner's machine."""


class CommandTimeout(SourceError):  # noqa: N818 - a condition, not a mistake
    """A command did not end within its time limit."""


@dataclass(frozen=True)
class EngineListing:
    """Result of listing an engine's jobs."""

    jobs: Sequence[EngineJob]
    login: LoginNeeded | None = None
    """Set if a part of the engine needs a person to log in; jobs in that part are `unknown`."""


class NodeSource(Protocol):
    """An engine that supplies nodes; a call without a definite result raises `SourceError`."""

    def submit(self, submission: Submission) -> str:
        """Start the engine's job for a request unless it exists; return the engine's id of the job.

        The call first searches for a job with the request's name, because an earlier call may have
        started the job and its response may have been lost. Calls for one request never run
        concurrently.
        """
        ...

    def list(self) -> EngineListing:
        """Return all of this source's jobs that have a request's name; the request may be
        withdrawn."""
        ...

    def status(self, request_ids: Sequence[str]) -> Sequence[EngineJob]:
        """Return the jobs for these requests; jobs unknown to the engine are omitted."""
        ...

    def cancel(self, request_id: str) -> None:
        """Make the engine end the job for a request; do nothing if there is no job."""
        ...

    def explain(self, request_id: str) -> str:
        """Return the engine's own text on why a request waits or how it ended."""
        ...


def run_command(
    command: Sequence[str],
    *,
    stdin: bytes | IO[bytes] = b"",
    seconds: float = COMMAND_SECONDS,
    variables: Mapping[str, str] | None = None,
    kept_bytes: int = -1,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command without a shell; return its result, whatever the exit status.

    The child gets no `TRAINYARD_*` variable, because the provisioner's own settings contain
    secrets.

    Args:
        command: program and arguments; it must contain no secret, because other users can read it.
        stdin: input for the command.
        seconds: time limit, after which the command and its process group are killed.
        variables: additional environment variables.
        kept_bytes: maximum number of bytes returned of each output; unlimited if negative.

    Raises:
        CommandTimeout: the command did not end within the time limit.
        SourceError: the program cannot be run.
    """
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TRAINYARD_")}
    text = stdin if isinstance(stdin, bytes) else None
    # Files instead of pipes: a process that the command leaves behind, such as a master connection
    # of ssh, keeps stderr open, and reading a pipe would wait for that process.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if text is not None else stdin,  # type: ignore[arg-type]
                stdout=output,
                stderr=errors,
                env={**clean, **(variables or {})},
                # A new session, so that Ctrl-C at the provisioner interrupts no call, and ssh finds
                # no terminal from which it could read a password.
                start_new_session=True,
            )
        except OSError as error:
            raise SourceError(f"{command[0]} cannot be run: {error.strerror or error}") from error
        try:
            process.communicate(text, timeout=seconds)
        except BaseException as error:
            if process.returncode is None:  # not reaped yet, so the group's id is not reused
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
    """Run a command on the machine that `ssh` reaches; never prompt a person.

    Args:
        ssh: program, options and host, such as `["ssh", "login1"]`.
        command: program and arguments, which are quoted for the remote shell.
        stdin: input for the command.
        kept_bytes: maximum number of bytes returned of each output; unlimited if negative.

    Raises:
        LoginNeeded: the machine accepts none of the keys.
        SourceError: the machine is unreachable, or the command did not end within the time limit.
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
    """Return the printable end of a command's stderr or, if it is empty, of its stdout; without
    either, return the exit status."""
    text = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace")
    return printable(text)[-SHOWN_CHARACTERS:] or f"exit status {done.returncode}"


def printable(text: str) -> str:
    """Return an engine's text without control characters other than tabs and line breaks."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
