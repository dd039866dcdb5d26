"""`shell`: runs a command in a running attempt, on this terminal or with pipes."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from trainyard.cli.errors import FAILED, write_error
from trainyard.cli.options import JobReference
from trainyard.cli.output import note
from trainyard.client.errors import ConflictError, TrainyardError, UsageError
from trainyard.client.references import resolve_job
from trainyard.client.sdk import Client
from trainyard.protocol.shell_sessions.messages import INPUT_BYTES, Terminal
from trainyard.protocol.shell_sessions.views import ShellView

FULL_SECONDS = 0.2
"""Pause, in seconds, before input is sent again because the server's buffer was full."""
SLOW_SECONDS = 5.0
"""If the command has not started after this number of seconds, a note explains the delay."""


def shell(
    reference: JobReference,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND",
            help="Program and arguments. Default on a terminal: a shell of the node.",
        ),
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", help="Node of the attempt. Default: the first.")
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option("--rank", min=0, help="Run on this rank's node, with its RANK, LOCAL_RANK."),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, help="Time limit of the command, in seconds.")
    ] = 3600.0,
    pipes: Annotated[bool, typer.Option("--pipes", help="Use pipes even on a terminal.")] = False,
) -> None:
    """Run a command in a running attempt, with the attempt's slots, environment and user.

    The command ends with the attempt, at the latest. The exit code is the command's exit code, or
    128 plus the number of the signal that ended the command. Server and node must allow code
    (TRAINYARD_ALLOW_CODE). The job's events name the command and the person who ran it. No shell
    parses the command; to use a shell, write `trainyard shell JOB -- sh -c 'ls | wc -l'`.
    """
    argv = command or []
    terminal = None if pipes else _terminal()
    if not argv and terminal is None:
        raise UsageError(
            "without a terminal, a command is required.",
            remedy="Write `trainyard shell JOB -- COMMAND`.",
        )
    with Client() as yard:
        job_id = resolve_job(yard, reference)
        opened = yard.open_shell(
            job_id, argv, node=node, rank=rank, terminal=terminal, seconds=seconds
        )
        try:
            with _raw(terminal is not None):
                ended = _converse(yard, opened, terminal)
        except BaseException:
            with suppress(TrainyardError):
                yard.close_shell(job_id, opened.id)
            raise
    if ended.failure is not None:
        write_error(ended.failure)
        raise typer.Exit(FAILED)
    code = ended.exit_code or 0
    raise typer.Exit(code if code >= 0 else 128 - code)


def _terminal() -> Terminal | None:
    """Return this terminal; None unless both stdin and stdout are a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    size = os.get_terminal_size(sys.stdout.fileno())
    rows, columns = max(size.lines, 1), max(size.columns, 1)
    try:
        return Terminal(rows=rows, columns=columns, kind=os.environ.get("TERM", "xterm"))
    except ValueError:
        return Terminal(rows=rows, columns=columns)


@contextmanager
def _raw(is_terminal: bool) -> Iterator[None]:
    """During the block, pass every key to the command, whose terminal interprets the keys."""
    if not is_terminal:
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # keeps typed input that is not read yet
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _converse(yard: Client, opened: ShellView, terminal: Terminal | None) -> ShellView:
    """Pass input and output until the command ends; return its final state."""
    typing = _Input(yard, opened, terminal)
    threading.Thread(target=typing.carry, name="shell-input", daemon=True).start()
    out, start, shown, begun = sys.stdout.buffer, 0, False, time.monotonic()
    try:
        while True:
            seen = yard.shell_output(opened.job_id, opened.id, start=start)
            if seen.content:
                out.write(seen.content)
                out.flush()
                start = seen.start + len(seen.content)
            elif seen.shell.ended_at is not None:
                return seen.shell
            if not shown and seen.shell.started_at is None and _since(begun) > SLOW_SECONDS:
                shown = True
                note(f"{opened.node} has not started the command yet.")
    finally:
        typing.stop()


def _since(moment: float) -> float:
    return time.monotonic() - moment


class _Input:
    """Sends typed or piped input to the command, and the size of the terminal."""

    def __init__(self, yard: Client, opened: ShellView, terminal: Terminal | None) -> None:
        self._yard = yard
        self._shell = opened
        self._terminal = terminal
        self._sent = 0
        self._over = threading.Event()
        self._resized = threading.Event()
        if terminal is not None:
            signal.signal(signal.SIGWINCH, lambda _number, _frame: self._resized.set())

    def carry(self) -> None:
        """Send input until the input or the command ends."""
        with suppress(TrainyardError, OSError, ValueError):
            descriptor = sys.stdin.fileno()
            while not self._over.is_set():
                self._send_size()
                if not select.select([descriptor], [], [], 0.2)[0]:
                    continue
                content = os.read(descriptor, INPUT_BYTES)
                self._send(content)
                if not content:
                    return

    def stop(self) -> None:
        """Stop sending input."""
        self._over.set()

    def _send(self, content: bytes) -> None:
        end = not content
        while not self._over.is_set():
            try:
                stored = self._yard.send_shell_input(
                    self._shell.job_id, self._shell.id, content, start=self._sent, end=end
                )
            except ConflictError:  # the command has ended; its output ends with the outcome
                return
            content, self._sent = content[stored - self._sent :], stored
            if not content:
                return
            self._over.wait(FULL_SECONDS)

    def _send_size(self) -> None:
        if self._terminal is None or not self._resized.is_set():
            return
        self._resized.clear()
        self._terminal = _terminal() or self._terminal
        self._yard.send_shell_input(
            self._shell.job_id, self._shell.id, start=self._sent, terminal=self._terminal
        )
