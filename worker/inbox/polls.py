"""Long polls of the server instead of a broker's queue; no Celery, no broker password."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from trainyard.base.backoff import Backoff, Retries
from trainyard.protocol.node_sources.messages import MessagesReply, MessagesRequest
from trainyard.protocol.rest.errors import ApiError
from trainyard.protocol.worker_messages import PROTOCOL, LaunchMessage, OperationMessage
from worker.api import BACKOFF, ServerAway, WorkerApi
from worker.inbox.start import Message, start
from worker.node.node_store import LocalNode
from worker.registration import own_token
from worker.settings import Settings

logger = logging.getLogger(__name__)

WAIT_SECONDS = 25.0
"""Maximum duration of a poll in seconds; proxies usually cut a silent connection after one minute.
"""
THREADS = 2
"""Number of launches and operations that can start at the same time; the same as with a broker."""
MAX_KNOWN = 1024
"""Maximum number of ids in a poll."""
AGAIN = Backoff(first=2.0, longest=60.0)
"""Pauses before this node handles an id again after a refused claim or a failed launch."""
SHORTEST_SECONDS = 1.0
"""Minimum time in seconds from the start of a poll that returns nothing to the start of the
next."""


class ServerInbox:
    """Polls for this node's messages; two threads handle them.

    The server lists an id until a claim succeeds. So each poll names the ids to omit: those in
    progress, and those handled too recently to be tried again.
    """

    def __init__(self, settings: Settings, node: LocalNode) -> None:
        self._settings = settings
        self._node = node
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._working: set[str] = set()
        self._handled: dict[str, Retries] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="start")

    def consume(self) -> None:
        """Handle messages until SIGTERM or SIGINT, then wait for the handling in progress.

        Must run in the main thread, because it sets signal handlers.
        """
        ended = os.eventfd(0, os.EFD_CLOEXEC)
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not `Event.set`: the signal could interrupt the thread that holds the event's lock,
            # and `set` would deadlock.
            signal.signal(number, lambda *_: os.eventfd_write(ended, 1))
        # A daemon thread: at its exit, the worker must not wait up to 25 s for a poll.
        threading.Thread(target=self.poll_until_stopped, name="polls", daemon=True).start()
        os.read(ended, 8)  # `os.read` resumes after a signal, unlike `eventfd_read`
        self.stop()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> None:
        """Stop polling for messages."""
        self._stopping.set()

    def poll_until_stopped(self) -> None:
        """Poll the server repeatedly, even while it is unreachable."""
        away = Retries(BACKOFF)
        settings = self._settings
        with WorkerApi(settings.url, None, ca_file=settings.ca_file) as api:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    api.token = own_token(self._node.store)
                    new = self._take(api.messages(self._request()))
                    if away.failures:
                        logger.info("the server answers again")
                    away.succeeded()
                    # A server may respond at once without a message, for example while it shuts
                    # down.
                    pause = 0.0 if new else began + SHORTEST_SECONDS - time.monotonic()
                except (ApiError, ServerAway) as error:
                    if not away.failures:
                        logger.warning("no messages: %s", error)
                    pause = away.failed() or BACKOFF.longest
                except Exception:
                    logger.exception("a poll failed")
                    pause = away.failed() or BACKOFF.longest
                self._stopping.wait(max(0.0, pause))

    def _request(self) -> MessagesRequest:
        """Return the next poll request; it ends when the next known id may be tried again."""
        now = time.monotonic()
        with self._lock:
            paused = {i: r.next_at - now for i, r in self._handled.items() if r.next_at > now}
            known = sorted(self._working | paused.keys())[:MAX_KNOWN]
        seconds = max(0.0, min([WAIT_SECONDS, *paused.values()]))
        return MessagesRequest(
            protocol=PROTOCOL, node=self._node.name, wait_seconds=seconds, known=tuple(known)
        )

    def _take(self, reply: MessagesReply) -> bool:
        """Start the handling of new messages; return whether there were new ones."""
        name, now = self._node.name, time.monotonic()
        listed: Sequence[tuple[str, Message]] = [
            *((i, LaunchMessage(attempt_id=i, node=name)) for i in reply.attempts),
            *((i, OperationMessage(operation_id=i, node=name)) for i in reply.operations),
        ]
        new = []
        with self._lock:
            self._forget(now)
            for key, message in listed:
                handled = self._handled.get(key)
                if key not in self._working and (handled is None or handled.next_at <= now):
                    self._working.add(key)
                    new.append((key, message))
        for key, message in new:
            if not self._stopping.is_set():
                self._threads.submit(self._start, key, message)
        return bool(new)

    def _start(self, key: str, message: Message) -> None:
        try:
            start(message, self._settings, self._node)
        except Exception:
            logger.exception("%r could not be carried out", message)
        finally:
            with self._lock:
                self._working.discard(key)
                self._handled.setdefault(key, Retries(AGAIN)).failed()

    def _forget(self, now: float) -> None:
        """Forget ids that the server has not listed for a while."""
        limit = now - 2 * AGAIN.longest
        self._handled = {i: r for i, r in self._handled.items() if r.next_at > limit}
