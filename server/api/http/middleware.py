"""Middleware for every request: id, log line, limits, headers, response to unexpected errors."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.api.http.problems import problem, refuse
from server.core.errors import TooLargeError
from server.core.visibility.job_labels import rendered
from server.core.visibility.scope import NO_SCOPE

logger = logging.getLogger("server.requests")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
API_PREFIX = "/api/"
ROUTINE = (f"{API_PREFIX}v1/workers/", "/healthz", "/readyz", "/metrics")
"""Paths that programs request repeatedly."""

# The dashboard loads nothing from other origins, and no page of another site may frame it.
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}

CLIENT_LEFT = 499
"""Status in the log and the metrics for a request whose client disconnected before the response."""

LOGGED = 200
"""Maximum number of characters of a method and of a path in the log; clients choose both texts."""
HSTS = {"strict-transport-security": "max-age=31536000"}
"""Header for responses under https: for a year, the browser uses only https for this host."""

SCOPE_KEY = "trainyard.scope"
"""Key of the ASGI scope under which authentication stores the `Scope` of the caller."""

Observer = Callable[[Scope, int, float], None]
"""Function that receives the ASGI scope, the status and the duration in seconds of each request."""


class RequestMiddleware:
    """Gives each request an id and a log line, and answers unexpected errors with status 500."""

    def __init__(self, app: ASGIApp, *, observe: Observer, is_https: bool) -> None:
        self.app = app
        self.observe = observe
        self.headers = SECURITY_HEADERS | (HSTS if is_https else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        begin = time.perf_counter()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._add_headers(scope, message, request_id)
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:
            status = status or CLIENT_LEFT
        except Exception:
            logger.exception("request %s failed", request_id)
            if status:  # the response has started, so it can only be aborted
                raise
            answer = problem(
                scope,
                status=500,
                title="Internal error",
                kind="/problems/internal",
                detail="the server failed unexpectedly; its log has the request id",
            )
            await answer(scope, receive, send_with_headers)
        finally:
            seconds = time.perf_counter() - begin
            self.observe(scope, status, seconds)
            logger.log(
                _level(scope["path"], status),
                "%s %s %s %d %.1f ms",
                request_id,
                scope["method"][:LOGGED],
                quote(scope["path"][:LOGGED]),  # a line break would start another line
                status,
                seconds * 1000,
            )

    def _add_headers(self, scope: Scope, message: Message, request_id: str) -> None:
        headers = MutableHeaders(scope=message)
        headers["x-request-id"] = request_id
        for name, value in self.headers.items():
            headers.setdefault(name, value)
        if scope["path"].startswith(API_PREFIX):
            headers.setdefault("cache-control", "no-store")


def _level(path: str, status: int) -> int:
    """Return the log level: DEBUG for successful routine requests, INFO for all others.

    A running attempt sends two routine requests per second.
    """
    routine = path.startswith(ROUTINE) and 0 < status < HTTPStatus.BAD_REQUEST
    return logging.DEBUG if routine else logging.INFO


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


class BodyLimitMiddleware:
    """Refuses a body if its announced length or its actual length is over the limit."""

    def __init__(self, app: ASGIApp, *, limit_of: Callable[[str], int]) -> None:
        """Take the function that returns the maximum body size for a path, in bytes."""
        self.app = app
        self.limit_of = limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.limit_of(scope["path"])
        refusal = TooLargeError(f"the body is over the limit of {limit:,} bytes")
        announced = Headers(scope=scope).get("content-length", "0")
        if not announced.isdecimal() or int(announced[:20]) > limit:
            await refuse(scope, refusal)(scope, receive, send)
            return
        read = 0

        async def receive_within_limit() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                raise refusal
            return message

        await self.app(scope, receive_within_limit, send)


class HeadMiddleware:
    """Answers HEAD like GET without a body, even if the GET response would never end."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope.get("method") != "HEAD":
            await self.app(scope, receive, send)
            return
        answered = False

        async def send_head(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                await send(message)
                await send({"type": "http.response.body", "body": b""})

        async def receive_until_answered() -> Message:
            return {"type": "http.disconnect"} if answered else await receive()

        await self.app({**scope, "method": "GET"}, receive_until_answered, send_head)


class LabelMiddleware:
    """Renders the labels of jobs in JSON responses; without a caller, all names are hidden.

    A JSON response has one message. Other responses, such as logs as text and archives, hold
    nothing that the server wrote.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun: Message | None = None

        async def send_rendered(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                if _is_json(message):
                    begun = message  # until its body, which gives the length
                    return
            elif begun is not None:
                start, begun = begun, None
                body = rendered(message.get("body", b""), scope.get(SCOPE_KEY, NO_SCOPE))
                MutableHeaders(scope=start)["content-length"] = str(len(body))
                await send(start)
                message = {**message, "body": body}
            await send(message)

        await self.app(scope, receive, send_rendered)


def _is_json(start: Message) -> bool:
    kind = MutableHeaders(scope=start).get("content-type", "")
    return kind.partition(";")[0].endswith(("/json", "+json"))
