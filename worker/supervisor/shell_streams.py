"""Connects the streams of a command's process to the server, in two threads."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import struct
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from trainyard.protocol.rest.errors import ApiError
from trainyard.protocol.shell_sessions.messages import (
    ShellExit,
    ShellInputRequest,
    ShellOutputMessage,
    ShellOutputReply,
    Terminal,
)
from trainyard.protocol.worker_messages import PROTOCOL
from worker.api import BACKOFF, ServerAway, WorkerApi
from worker.launchers.base import Share
from worker.node.node_store import NodeStore

logger = logging.getLogger(__name__)

CONTACT_SECONDS = 5.0
"""Maximum pause between output messages, in seconds; each reply states whether the command must
end.
"""
AWAY_SECONDS = 60.0
"""Time, in seconds, without the server after which the command ends, because its output cannot be
delivered.
"""
GATHER_SECONDS = 0.01
"""Time, in seconds, over which output is collected into a message."""
FULL_SECONDS = 0.1
"""Pause, in seconds, while the server's buffer for output is full."""
LAST_SECONDS = 0.5
"""Time, in seconds, to read output of the process' children after the end of the process."""
POLL_SECONDS = 10.0
"""Maximum duration of a poll for input, in seconds; shorter than the time limit of a call."""
PIECE_BYTES = 64 * 1024
END_OF_INPUT = b"\x04"
"""Terminal character that ends the input."""

Reply = TypeVar("Reply")


class ShellStreams:
    """Threads of one command; the main thread calls `ended` when the process has ended."""

    def __init__(
        self, share: Share, shell_id: str, *, output: int, given: int, terminal: Terminal | None
    ) -> None:
        """Describe the threads; nothing starts yet.

        Args:
            share: the share in which the command runs.
            shell_id: id of the command.
            output: descriptor from which the command's output is read.
            given: descriptor to which the command's input is written.
            terminal: terminal of the command; None without one.
        """
        self._share = share
        self._id = shell_id
        self._output, self._given = output, given
        self._terminal = terminal
        self._exit: ShellExit | None = None
        self._exited_at = 0.0
        self._exited = threading.Event()
        self._unwanted = threading.Event()
        self._token = share.run.secret.read_text(encoding="ascii").strip()
        self._threads = [
            threading.Thread(target=target, name=f"shell-{name}", daemon=True)
            for name, target in (("output", self._carry_output), ("input", self._carry_input))
        ]
        for descriptor in (output, given):
            os.set_blocking(descriptor, False)

    @property
    def unwanted(self) -> bool:
        """Whether the command must end, by an order or because the server is unreachable."""
        return self._unwanted.is_set()

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def ended(self, status: int) -> None:
        """Record the exit status of the process."""
        self._exited_at = time.monotonic()
        self._exit = ShellExit(exit_code=status)
        self._exited.set()

    def join(self, seconds: float) -> None:
        """Wait until the exit is sent, for at most `seconds`."""
        self._threads[0].join(seconds)

    @property
    def over(self) -> bool:
        """Whether everything that can be sent has been sent."""
        return not self._threads[0].is_alive()

    # ---- output ---------------------------------------------------------------------------------

    def _carry_output(self) -> None:
        try:
            with self._api() as api:
                stored = self._send_output(api)
                self._call(api, lambda: self._tell(api, stored, content=b"", ended=self._exit))
        except Exception:
            logger.exception("output of command %s is lost", self._id)
        finally:
            self._unwanted.set()
            os.close(self._output)

    def _send_output(self, api: WorkerApi) -> int:
        """Send output until the process and its output have ended; return the end offset.

        Output of a command that must end is read too, so that the command does not block.
        """
        held, stored, contact_at, is_open = b"", 0, 0.0, True
        while is_open or held or not self._exited.is_set():
            if is_open and len(held) < PIECE_BYTES:
                piece = self._read(0.0 if held else 0.1)
                is_open = piece is not None and (bool(piece) or not self._is_silent)
                held += piece or b""
            elif not held:
                self._exited.wait(0.1)
            if self.unwanted:
                held = b""
            elif held or time.monotonic() - contact_at > CONTACT_SECONDS:
                sent = self._send(api, stored, held[:PIECE_BYTES])
                held, stored = held[sent:], stored + sent
                contact_at = time.monotonic()
        return stored

    def _send(self, api: WorkerApi, start: int, content: bytes) -> int:
        """Send output; return the number of bytes that the server accepted."""
        reply = self._call(api, lambda: self._tell(api, start, content=content, ended=None))
        if reply is None or not reply.wanted:
            self._unwanted.set()
            return 0
        taken = max(reply.stored - start, 0)
        if taken < len(content):
            time.sleep(FULL_SECONDS)
        return taken

    def _read(self, seconds: float) -> bytes | None:
        """Return output that arrives within `seconds`; None after the end of the output."""
        if not select.select([self._output], [], [], seconds)[0]:
            return b""
        time.sleep(GATHER_SECONDS)
        try:
            return os.read(self._output, PIECE_BYTES) or None
        except OSError as error:
            if error.errno == errno.EIO:  # no process has the terminal open now
                return None
            raise

    @property
    def _is_silent(self) -> bool:
        """Whether the process ended so long ago that no output can follow."""
        return self._exited.is_set() and time.monotonic() - self._exited_at > LAST_SECONDS

    def _tell(
        self, api: WorkerApi, start: int, *, content: bytes, ended: ShellExit | None
    ) -> ShellOutputReply:
        message = ShellOutputMessage(protocol=PROTOCOL, start=start, content=content, exit=ended)
        return api.shell_output(self._share.launch.attempt_id, self._id, message)

    # ---- input ----------------------------------------------------------------------------------

    def _carry_input(self) -> None:
        try:
            with self._api() as api:
                self._pass_input(api)
        except OSError as error:  # the command has closed its input
            logger.debug("input of command %s: %s", self._id, error)
        except Exception:
            logger.exception("input of command %s is lost", self._id)
        finally:
            os.close(self._given)

    def _pass_input(self, api: WorkerApi) -> None:
        received, terminal = 0, self._terminal
        while not self._exited.is_set() and not self.unwanted:
            request = ShellInputRequest(
                protocol=PROTOCOL, start=received, wait_seconds=POLL_SECONDS, terminal=terminal
            )
            attempt_id = self._share.launch.attempt_id
            reply = self._call(
                api,
                lambda: api.shell_input(attempt_id, self._id, request),  # noqa: B023
            )
            if reply is None or not reply.wanted:
                self._unwanted.set()
                return
            if reply.terminal is not None and reply.terminal != terminal:
                terminal = reply.terminal
                resize(self._given, terminal)
            received += len(reply.content)
            self._write(reply.content)
            if reply.end:
                if self._terminal is not None:
                    self._write(END_OF_INPUT)
                return

    def _write(self, content: bytes) -> None:
        while content and not self._exited.is_set() and not self.unwanted:
            if select.select([], [self._given], [], 0.2)[1]:
                content = content[os.write(self._given, content) :]

    # ---- the server -----------------------------------------------------------------------------

    def _api(self) -> WorkerApi:
        node = NodeStore(Path(self._share.launch.data_dir))
        return WorkerApi(node.server_url or "", self._token, ca_file=node.server_ca)

    def _call(self, api: WorkerApi, call: Callable[[], Reply]) -> Reply | None:
        """Return the server's reply; None after a refusal, or after a long outage."""
        deadline, pauses = time.monotonic() + AWAY_SECONDS, BACKOFF.pauses()
        while True:
            try:
                return call()
            except ApiError as refusal:
                logger.info("command %s is refused: %s", self._id, refusal)
                return None
            except ServerAway as error:
                if time.monotonic() > deadline:
                    logger.info("command %s is ended: %s", self._id, error)
                    return None
                api.url = NodeStore(Path(self._share.launch.data_dir)).server_url or api.url
                time.sleep(next(pauses))


def resize(descriptor: int, terminal: Terminal) -> None:
    """Set the size of a terminal."""
    size = struct.pack("HHHH", terminal.rows, terminal.columns, 0, 0)
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, size)
