"""uvicorn's HTTP protocol with limits; without them, uvicorn stores headers of any size."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.api.http.problems import MEDIA_TYPE
from server.api.wire.connections import Connections
from trainyard.protocol.rest.common import ProblemDetails
from trainyard.protocol.worker_messages import MAX_REPORT_BYTES
from trainyard.spec.code_pack import MAX_PACK_BYTES

HEADER_OVERHEAD = 4
"""Bytes of a header besides name and value: colon, space and end of line."""


@dataclass(frozen=True)
class Limits:
    """Limits of one connection."""

    head_bytes: int = 32 * 1024
    """Maximum size of the request line and all headers, in bytes."""
    headers: int = 100
    """Maximum number of headers of a request."""
    head_seconds: float = 10.0
    """Time limit for the request line and headers, in seconds."""
    body_seconds: float = 60.0
    """Time limit, in seconds, within which the next `body_bytes` of a body must arrive. The limit
    applies while the application reads the body.
    """
    body_bytes: int = 1024 * 1024
    """Number of bytes of a body that a client must send within `body_seconds`."""
    message_bytes: int = MAX_PACK_BYTES + 2 * MAX_REPORT_BYTES
    """Maximum size of one request on the wire, in bytes; the application has further limits."""
    pipelined: int = 8
    """Maximum number of requests on one connection that wait for the response to an earlier one."""
    write_seconds: float = 60.0
    """Time for which a client may leave its response unread, in seconds."""


class RefusedOnWireError(Exception):
    """Stops the parser after a limit was exceeded; the protocol has stored the reason."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection with limits; if a limit is exceeded, it sends a problem document and closes.

    `_part` is `head` until the headers of a request are complete, `body` until the request is
    complete, and `idle` until the first byte of the next one.
    """

    limits: ClassVar[Limits]
    open: ClassVar[Connections]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or refuse it immediately."""
        super().connection_made(transport)
        self._part: Literal["head", "body", "idle"] = "head"
        self._fed = 0  # bytes of the current request, except chunks shared with another request
        self._fed_before = 0  # value of `_fed` when the timer for the body was started
        self._counted = 0  # bytes of the request line and of the complete headers
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._refusal: tuple[HTTPStatus, str] | None = None
        self._host = self.client[0] if self.client else ""
        why = self.open.admit(self._host)
        self._admitted = why is None
        if why is not None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, why)
        else:
            self._arm(self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection."""
        super().connection_lost(exc)
        self._disarm()
        self.resume_writing()
        if self._admitted:
            self._admitted = False
            self.open.release(self._host)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and refuse the request if it exceeds a limit."""
        if self.transport.is_closing():
            return
        if self._part == "idle":
            self._begin_head()
        self._fed += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._part == "head" and self._fed > self.limits.head_bytes:
            self._refuse(*self._head_too_large())
        elif self._part == "body" and self._fed > self.limits.message_bytes:
            limit = f"the limit of {self.limits.message_bytes:,} bytes"
            self._refuse(HTTPStatus(413), f"the request is over {limit}")

    def send_400_response(self, msg: str) -> None:
        """Respond to a request that the parser could not read or that exceeded a limit."""
        self._refuse(*(self._refusal or (HTTPStatus.BAD_REQUEST, msg)))

    def pause_writing(self) -> None:
        """Start a timer that ends the connection if the client does not read its response in
        time."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(
                self.limits.write_seconds, self.transport.abort
            )

    def resume_writing(self) -> None:
        """Stop the timer, because the client has read."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # ---- called by the parser ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Start counting the next request."""
        super().on_message_begin()
        self._counted = 0
        if self._part == "idle":  # the request follows another request in the same chunk
            self._begin_head()
        if len(self.pipeline) >= self.limits.pipelined:
            self._stop(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"more than {self.limits.pipelined} requests wait on this connection",
            )

    def on_url(self, url: bytes) -> None:
        """Count the bytes of the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the bytes of a header; trailers count, too."""
        self._count(len(name) + len(value) + HEADER_OVERHEAD)
        if len(self.headers) >= self.limits.headers:
            self._stop(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the request has more than {self.limits.headers} headers",
            )
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the timer for the body."""
        super().on_headers_complete()
        self._part = "body"
        self._arm_body()

    def on_message_complete(self) -> None:
        """Stop the timer, because the request is complete."""
        self._part = "idle"
        self._fed = 0
        self._disarm()
        super().on_message_complete()

    # ---- limits ------------------------------------------------------------------------------

    def _begin_head(self) -> None:
        self._part = "head"
        self._arm(self.limits.head_seconds)

    def _count(self, number: int) -> None:
        self._counted += number
        if self._counted > self.limits.head_bytes:
            self._stop(*self._head_too_large())

    def _head_too_large(self) -> tuple[HTTPStatus, str]:
        limit = f"the request line and headers are over the limit of {self.limits.head_bytes:,}"
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"{limit} bytes"

    def _stop(self, status: HTTPStatus, detail: str) -> None:
        self._refusal = (status, detail)
        raise RefusedOnWireError(detail)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._time_out)

    def _arm_body(self) -> None:
        self._fed_before = self._fed
        self._arm(self.limits.body_seconds)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        if self.transport.is_closing():
            return
        # The client is not slow while the server does not read or answers an earlier request.
        if self._part == "head" and self._is_answering():
            self._arm(self.limits.head_seconds)
        elif self._part == "body" and (
            self.flow.read_paused or self._fed - self._fed_before >= self.limits.body_bytes
        ):
            self._arm_body()
        elif self._part == "head" and not self._fed:
            self.transport.close()  # no request has started, so there is nothing to respond to
        else:
            seconds = getattr(self.limits, f"{self._part}_seconds")
            what = "headers" if self._part == "head" else "body"
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT, f"the {what} took longer than {seconds:g} seconds"
            )

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Send a problem document unless another response has started, and close the connection."""
        self._disarm()
        if self._part == "head":
            is_free = not self._is_answering()
        else:
            is_free = not self.cycle.response_started and not self.pipeline
        if is_free:
            self.transport.write(_answer(status, detail))
        if self.cycle is not None:
            self.cycle.disconnected = True  # drops the rest of the application's response
        self.transport.close()


def bounded(limits: Limits, connections: Connections) -> type[BoundedProtocol]:
    """Return the protocol class with these limits, for one server."""
    return type("ServerProtocol", (BoundedProtocol,), {"limits": limits, "open": connections})


def _answer(status: HTTPStatus, detail: str) -> bytes:
    body = ProblemDetails(
        type="about:blank", title=status.phrase, status=status, detail=detail, request_id=""
    ).model_dump_json()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"content-type: {MEDIA_TYPE}\r\n"
        f"content-length: {len(body.encode())}\r\n"
        "connection: close\r\n\r\n"
    )
    return (head + body).encode()
