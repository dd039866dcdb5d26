"""Group commit: one transaction serves all requests that wait at the same time.

A single request is served immediately. When requests follow each other closely, they are collected
while the previous group is served, and during a short pause after that; then they form the next
group. There is no pause when a full group waits.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from fastapi import Request
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.concurrency import run_in_threadpool

from server.core.context import Context
from server.core.database.engine import OBSERVER

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Serve = Callable[[Context, Sequence[Item]], Sequence[Answer | Exception]]
"""Function that serves a group of requests and returns, for each request, its result or its error.
If it raises an error, nothing of the group is stored.
"""

MAX_TOGETHER = 64
"""Maximum number of requests in one group; other writers wait for the transaction of the group."""
GATHER_SECONDS = 0.005
"""Default pause before a group, in seconds. There is no pause if this time has passed since the
previous group.
"""


async def served_together(
    request: Request,
    serve: Serve[Item, Answer],
    item: Item,
    *,
    key: Hashable = None,
    gather_seconds: float = GATHER_SECONDS,
) -> Answer:
    """Serve a request in a group with other requests for the same function; return its result.

    Args:
        request: the HTTP request, which gives the application.
        serve: serves a group, in a thread.
        item: the input of `serve` for this request.
        key: requests with the same key are served in order, in different groups.
        gather_seconds: the pause before a group that follows another one within this time; the
            first call for a function sets it.

    Raises:
        Exception: the error that `serve` returns for this request, or raises for its group.
    """
    groups = request.app.state.groups
    assert isinstance(groups, Groups)
    return cast("Answer", await groups.queue_of(serve, gather_seconds).answer(item, key))


class Groups:
    """The waiting requests of one application, by the function that will serve them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # A future belongs to one event loop; a test client has one per request.
        self._queues: WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[Callable[..., Any], _Queue]
        ] = WeakKeyDictionary()

    def queue_of(self, serve: Serve[Any, Any], gather_seconds: float = GATHER_SECONDS) -> _Queue:
        """Return the queue for a function in the current event loop."""
        queues = self._queues.setdefault(asyncio.get_running_loop(), {})
        if serve not in queues:
            queues[serve] = _Queue(partial(serve, self._context), gather_seconds)
        return queues[serve]


@dataclass(frozen=True)
class _Waiting:
    item: Any
    key: Hashable
    answer: asyncio.Future[Any]


class _Queue:
    """Requests that wait for one function; the queue serves one group at a time."""

    def __init__(
        self, serve: Callable[[Sequence[Any]], Sequence[Any]], gather_seconds: float
    ) -> None:
        self._serve = serve
        self._gather_seconds = gather_seconds
        self._waiting: list[_Waiting] = []
        self._serving: asyncio.Task[None] | None = None
        self._served_at = -math.inf

    async def answer(self, item: Any, key: Hashable) -> Any:
        """Queue one request, and return its result."""
        waiting = _Waiting(item, key, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve_all())
        return await waiting.answer

    async def _serve_all(self) -> None:
        OBSERVER.set(None)  # that of the request that started the task
        try:
            left = False
            while self._waiting:
                is_close = time.monotonic() - self._served_at < self._gather_seconds
                # Requests left over from the last group have already waited.
                if is_close and not left and len(self._waiting) < MAX_TOGETHER:
                    await asyncio.sleep(self._gather_seconds)
                group = self._next_group()
                left = bool(self._waiting)
                await self._serve_group(group)
                self._served_at = time.monotonic()
        finally:
            self._serving = None  # the task refers to the event loop

    async def _serve_group(self, group: Sequence[_Waiting]) -> None:
        """Give every request of a group a result or an error, so that no client waits forever."""
        items = [each.item for each in group]
        try:
            answers = await run_in_threadpool(serve_apart, self._serve, items)
            for each, answer in zip(group, answers, strict=True):
                _settle(each.answer, answer)
        except Exception:
            logger.exception("a group of %d requests got no answers", len(group))
        finally:
            for each in group:
                if not each.answer.done():
                    each.answer.set_exception(RuntimeError("the group was not served"))

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        left: list[_Waiting] = []
        keys: set[Hashable] = set()
        for each in self._waiting:
            if len(group) == MAX_TOGETHER or (each.key is not None and each.key in keys):
                left.append(each)
            else:
                group.append(each)
            # Even if the request is left over, no later one with its key overtakes it.
            keys.add(each.key)
        self._waiting = left
        return group


def serve_apart(
    serve: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any]
) -> Sequence[Any]:
    """Return the results for a group; after an error, serve the two halves separately.

    An `OperationalError` or a timeout of the connection pool is returned for all requests, because
    the halves would fail, too.
    """
    try:
        return serve(items)
    except (OperationalError, PoolTimeoutError) as error:
        return [error] * len(items)
    except BaseException as error:  # a panic of compiled code is not an `Exception`
        if len(items) == 1:
            return [_as_answer(error)]
        logger.debug("%d requests are served apart", len(items), exc_info=True)
    half = len(items) // 2
    return [*serve_apart(serve, items[:half]), *serve_apart(serve, items[half:])]


def answer_or_error(make: Callable[[], Answer]) -> Answer | Exception:
    """Return the result of `make`; if `make` raises an error, return the error.

    Use this after the group is stored. If the error were raised, `serve_apart` would store the
    group again.
    """
    try:
        return make()
    except BaseException as error:  # noqa: BLE001 - includes a panic of compiled code
        return _as_answer(error)


def _as_answer(error: BaseException) -> Exception:
    """Return an error as an `Exception`, because any other `BaseException` would end the thread."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():  # the request was cancelled or already answered
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
