"""Calls to machines through the system's `ssh`, with only the operator's keys and connections."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from uuid import uuid4

from provisioner.base import (
    SHOWN_CHARACTERS,
    SSH_FAILED,
    CommandTimeout,
    LoginNeeded,
    SourceError,
    printable,
    run_command,
)
from provisioner.ssh.hosts import SshOptions

SCRIPT = Path(__file__).with_name("host.sh")
MARK = "-- trainyard --"
"""Line before and after a response, because login shells may print lines of their own."""
OWN_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    # No new master connection: it would outlive the call, and only a person may log in anew.
    "ControlMaster=no",
    "ForwardAgent=no",
    "ClearAllForwardings=yes",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
)
"""Options that override the operator's options. They come first, because `ssh` uses the first value
of each option."""
DENIED = re.compile(
    r"^(?:(?P<who>\S+): )?(?:Permission denied|Received disconnect.*Too many authentication)",
    re.MULTILINE,
)
MAX_ANSWER = 1_000_000


class Ssh:
    """The `ssh` program, with the options of a source."""

    def __init__(self, options: SshOptions) -> None:
        self._options = options
        own = (*OWN_OPTIONS, f"ConnectTimeout={options.connect_seconds}")
        program, *words = options.ssh
        self._command = (program, "-T", *(w for each in own for w in ("-o", each)), *words)

    def call(
        self,
        host: str,
        call: str,
        *words: str,
        documents: Sequence[str] = (),
        seconds: float | None = None,
    ) -> list[str]:
        """Run one function of `host.sh` on a machine; return the lines of its response.

        Args:
            host: name of the machine.
            call: name of the function.
            words: arguments of the function; they must contain no secret.
            documents: texts that the function reads from the descriptors 3, 4, ...
            seconds: time limit; by default, the time limit in the options.

        Raises:
            LoginNeeded: a person must log in first.
            SourceError: the machine did not respond, or responded with an error.
        """
        remote = self._run(
            host,
            "sh",
            _script(self._options.base, call, words=words, documents=documents).encode(),
            seconds=seconds or self._options.call_seconds,
        )
        _, opened, answer = remote.partition(f"{MARK}\n")
        answer, closed, _ = answer.partition(f"{MARK}\n")
        if not opened or not closed:
            raise SourceError(f"{host}: the answer to {call} is incomplete")
        return answer.splitlines()

    def upload(self, host: str, path: Path, folder: str) -> None:
        """Copy a file to a machine's folder as `bundle.tar`; the copy gets this name once complete.

        Raises:
            LoginNeeded: a person must log in first.
            SourceError: the file cannot be read, or the copy failed.
        """
        # Unlike in other calls, stdin carries the file, so the command is given to `sh`, because
        # login shells differ.
        part = f"bundle.{uuid4().hex}.part"
        words = (
            f"umask 077; mkdir -p {folder} && cd {folder} && cat > {part} && mv {part} bundle.tar"
        )
        try:
            with path.open("rb") as file:
                seconds = self._options.install_seconds
                self._run(host, f"sh -c {shlex.quote(words)}", file, seconds=seconds)
        except OSError as error:
            raise SourceError(f"bundle={str(path)!r}: {error.strerror}") from error

    def _run(self, host: str, remote: str, stdin: bytes | IO[bytes], *, seconds: float) -> str:
        """Run a command on a machine; return its output."""
        status, output, errors = self._execute(
            (*self._command, "--", host, remote), stdin, seconds=seconds
        )
        if status == 0:
            return output
        if status is None:
            raise SourceError(f"{host}: no answer within {seconds:.0f} s")
        shown = errors.strip()[-SHOWN_CHARACTERS:] or f"exit status {status}"
        if status != SSH_FAILED:
            raise SourceError(f"{host}: {shown}")
        if denied := DENIED.search(errors):
            command = self._login_command(host, denied["who"] or "")
            raise LoginNeeded(f"{host}: {shown}", command=command)
        raise SourceError(f"{host} is not reached: {shown}")

    def _execute(
        self, command: Sequence[str], stdin: bytes | IO[bytes], *, seconds: float
    ) -> tuple[int | None, str, str]:
        """Return a command's exit status, stdout and stderr; the status is None after a timeout."""
        try:
            done = run_command(
                command,
                stdin=stdin,
                seconds=seconds,
                variables={"SSH_ASKPASS_REQUIRE": "never"},
                kept_bytes=MAX_ANSWER,
            )
        except CommandTimeout:
            return None, "", ""
        output, errors = (each.decode(errors="replace") for each in (done.stdout, done.stderr))
        return done.returncode, output, printable(errors)

    def _login_command(self, host: str, who: str) -> str:
        """Return the command with which a person logs in to the machine that refused the login."""
        settings = self._settings(host)
        jumps = [jump for jump in settings.get("proxyjump", "").split(",") if jump != "none"]
        address = who.rpartition("@")[2]
        if address and address != settings.get("hostname"):
            for jump in filter(None, jumps):
                name = f"ssh://{jump}" if ":" in jump else jump
                found = self._settings(name)
                if found.get("hostname") == address:
                    host, settings = name, found
        path = settings.get("controlpath", "none")
        if path == "none":
            return shlex.join([*self._options.ssh, host])
        return shlex.join([*self._options.ssh, "-MNf", "-S", path, host])

    def _settings(self, host: str) -> dict[str, str]:
        """Return the settings that `ssh -G` prints for a host; empty if the command fails."""
        status, output, _ = self._execute((*self._options.ssh, "-G", "--", host), b"", seconds=10)
        if status != 0:
            return {}
        return {key: value for key, _, value in (x.partition(" ") for x in output.splitlines())}


def _script(base: str, call: str, *, words: Sequence[str], documents: Sequence[str]) -> str:
    """Return a script with the functions and one call; the call starts once the whole script has
    arrived."""
    ends = [f"end-{uuid4().hex}" for _ in documents]
    reads = [f"{number}<<'{end}'" for number, end in enumerate(ends, start=3)]
    parts = [
        SCRIPT.read_text(encoding="utf-8"),
        "main() {",
        f"echo '{MARK}'",
        f"enter {shlex.quote(base)}",
        " ".join((call, *map(shlex.quote, words), *reads)),
        *(f"{text}{end}" for text, end in zip(documents, ends, strict=True)),
        f"echo '{MARK}'",
        "}",
        "main",
        "exit 0",
        "",
    ]
    return "\n".join(parts)
