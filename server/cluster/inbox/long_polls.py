"""Long polls of workers: one repeated query reads the waiting messages for all polls."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import BindParameter, bindparam, literal, select, union_all
from starlette.concurrency import run_in_threadpool

from server.core.context import Context
from server.core.database.engine import batches
from server.core.database.tables import attempt_nodes, operations
from server.core.errors import UnavailableError
from trainyard.protocol.node_sources.messages import MessagesReply
from trainyard.protocol.states import AttemptNodeState, OperationState

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
"""Pause between two queries while polls wait, in seconds."""
AWAY_SECONDS = 1.0
"""Pause after a failed query, in seconds, because the database may be unreachable."""
MAX_POLLS = 10_000
"""Maximum number of waiting polls in one process; each takes a few kilobytes and a connection."""
READ_AT_ONCE = 500
"""Maximum number of nodes in one statement; databases are slow to plan statements with long
lists."""
NOTHING = MessagesReply()

_AWAITED: BindParameter[Sequence[str]] = bindparam("awaited", expanding=True)
_LEVELS = union_all(
    select(
        literal("attempts").label("kind"),
        attempt_nodes.c.node.label("node"),
        attempt_nodes.c.attempt_id.label("id"),
    ).where(attempt_nodes.c.node.in_(_AWAITED), attempt_nodes.c.state == AttemptNodeState.PLACED),
    select(literal("operations"), operations.c.node, operations.c.id).where(
        operations.c.node.in_(_AWAITED), operations.c.state == OperationState.QUEUED
    ),
)


def read_messages(context: Context, nodes: Collection[str]) -> Mapping[str, MessagesReply]:
    """Return for each node the shares and operations to claim; nodes without either are omitted.

    Each id is returned until it is claimed, so a lost response costs nothing.
    """
    with context.database.read() as connection:
        rows = [
            row
            for names in batches([*nodes], READ_AT_ONCE)
            for row in connection.execute(_LEVELS, {"awaited": names}).all()
        ]
    ids: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        ids[row.node][row.kind].append(row.id)
    return {
        node: MessagesReply(**{kind: tuple(sorted(found)) for kind, found in of_node.items()})
        for node, of_node in ids.items()
    }


class Inboxes:
    """The long polls of one process, served by one repeated query.

    A poll waits in the event loop, so it holds neither a thread nor a database connection.
    """

    def __init__(self, context: Context, *, most: int = MAX_POLLS) -> None:
        self._context = context
        self._most = most
        self._polls: dict[str, _Poll] = {}
        self._looking: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Number of waiting polls."""
        return len(self._polls)

    async def messages(
        self, node: str, *, known: Collection[str], wait_seconds: float
    ) -> MessagesReply:
        """Wait until a node has ids to claim that are not in `known`, and return these ids.

        If none comes within `wait_seconds`, the reply is empty. A node has at most one poll. A
        newer poll of the node ends the older poll with an empty reply.

        Raises:
            UnavailableError: the process already has its maximum number of polls.
        """
        if wait_seconds <= 0 or self._closed.is_set():
            found = await run_in_threadpool(read_messages, self._context, [node])
            return _without(found.get(node, NOTHING), known)
        former = self._polls.get(node)
        if former is not None:
            former.end()
        elif len(self._polls) >= self._most:
            raise UnavailableError(f"{self._most} nodes wait for messages; try again soon")
        answer: asyncio.Future[MessagesReply] = asyncio.get_running_loop().create_future()
        poll = self._polls[node] = _Poll(frozenset(known), answer)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_while_awaited())
        try:
            async with asyncio.timeout(wait_seconds):
                return await answer
        except TimeoutError:
            return NOTHING
        finally:
            if self._polls.get(node) is poll:
                del self._polls[node]

    def close(self) -> None:
        """End all polls with an empty reply; later polls get their reply without a wait."""
        self._closed.set()
        for poll in self._polls.values():
            poll.end()

    async def stop(self) -> None:
        """End all polls and the repeated query; return after the query has freed its connection."""
        self.close()
        if self._looking is not None:
            await self._looking

    async def _look_while_awaited(self) -> None:
        while self._polls and not self._closed.is_set():
            pause = POLL_SECONDS
            try:
                found = await run_in_threadpool(read_messages, self._context, tuple(self._polls))
            # Most likely the database is unreachable; the polls wait until their time ends.
            except Exception:
                logger.exception("the messages of nodes could not be read")
                found, pause = {}, AWAY_SECONDS
            for node, reply in found.items():
                poll = self._polls.get(node)
                if poll is not None and (new := _without(reply, poll.known)) != NOTHING:
                    poll.end(new)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._closed.wait()


@dataclass(frozen=True)
class _Poll:
    """The waiting poll of one node."""

    known: frozenset[str]
    """Ids that the node knows already."""
    answer: asyncio.Future[MessagesReply]

    def end(self, reply: MessagesReply = NOTHING) -> None:
        """End the poll with a reply, unless the poll has already ended."""
        if not self.answer.done():
            self.answer.set_result(reply)


def _without(reply: MessagesReply, known: Collection[str]) -> MessagesReply:
    return MessagesReply(
        attempts=tuple(each for each in reply.attempts if each not in known),
        operations=tuple(each for each in reply.operations if each not in known),
    )
