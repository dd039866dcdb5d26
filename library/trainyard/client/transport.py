"""HTTP to one server: base URL, token, retries of safe requests, typed errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from trainyard.base.backoff import Backoff, Retries, retry
from trainyard.client.errors import ApiError, ConnectionFailedError, UsageError
from trainyard.client.settings import Connection
from trainyard.outside.http_client import http_client
from trainyard.outside.proxies import ProxyError
from trainyard.protocol.rest.common import Page
from trainyard.protocol.rest.errors import error_of

Model = TypeVar("Model", bound=BaseModel)
Item = TypeVar("Item")
QueryValue = str | int | float | list[str]
Query = Mapping[str, QueryValue | None]

BACKOFF = Backoff(first=0.25, longest=2.0)
TRIES = 5
"""Maximum number of tries of a repeatable request; they take about four seconds, enough for a
restart of the server."""
READ_SECONDS, CONNECT_SECONDS = 60.0, 5.0
PAGE_SIZE = 100
UNSET = "Correct or unset the variable. NO_PROXY lists hosts to reach without a proxy."
IDEMPOTENT = frozenset({"GET", "PUT", "DELETE"})
PASSING = frozenset({502, 503, 504})
"""HTTP statuses of a restarting server, or of a proxy in front of it."""


class Transport:
    """Sends requests below `/api/v1`, and parses the responses into models."""

    def __init__(
        self,
        connection: Connection,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create the HTTP client without sending anything.

        Raises:
            UsageError: a proxy variable in the environment is invalid.
        """
        self.connection = connection
        headers = {"Accept": "application/json", "User-Agent": "trainyard-client"}
        if connection.token:
            headers["Authorization"] = f"Bearer {connection.token}"
        try:
            self.http = http_client(
                connection.url,
                transport=transport,
                base_url=f"{connection.url}/api/v1",
                headers=headers,
                timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
            )
        except ProxyError as error:
            raise UsageError(str(error), remedy=UNSET) from None
        self.sleep = sleep

    def poll(
        self,
        look: Callable[[], Model],
        is_over: Callable[[Model], bool],
        *,
        waiting: str,
        timeout: float | None,
        poll_seconds: float,
    ) -> Model:
        """Poll until `is_over` is true for the value; return the value.

        Raises:
            TimeoutError: the pauses took `timeout` seconds; `waiting` is the format string of the
                error's text, with the value as `{0}`.
        """
        waited = 0.0
        while not is_over(seen := look()):
            if timeout is not None and waited >= timeout:
                raise TimeoutError(f"{waiting.format(seen)} after {timeout:g} s")
            self.sleep(poll_seconds)
            waited += poll_seconds
        return seen

    def get(self, model: type[Model], path: str, query: Query | None = None) -> Model:
        """Read one resource."""
        return read(model, self.send("GET", path, query=query))

    def pages(
        self, model: type[Page[Item]], path: str, query: Query | None = None
    ) -> Iterator[Item]:
        """Iterate over the items of a list; pages are fetched on demand."""
        parameters: dict[str, QueryValue | None] = {**(query or {}), "page_size": PAGE_SIZE}
        while True:
            page = self.get(model, path, parameters)
            yield from page.items
            if page.next_page_token is None:
                return
            parameters["page_token"] = page.next_page_token

    def post(
        self,
        model: type[Model],
        path: str,
        body: BaseModel | Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Model:
        """Send a POST; retry it if it never reached the server or has an idempotency key."""
        return read(model, self.send("POST", path, body=body, headers=headers))

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: BaseModel | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request and return its successful response.

        Idempotent requests (by method, or by an `Idempotency-Key`) are retried after a lost
        connection and while the server restarts. Other requests are retried only if no connection
        was established, so that the server cannot have received them.

        Raises:
            ConnectionFailedError: the server could not be reached, or did not respond in time.
            ApiError: the server rejected the request.
        """
        headers = dict(headers or {})
        content = _content(body)
        if content is not None:
            headers["Content-Type"] = "application/json"
        request = self.http.build_request(
            method, path, params=given(**(query or {})), content=content, headers=headers
        )
        repeatable = method in IDEMPOTENT or "Idempotency-Key" in headers
        return self._send_patiently(request, repeatable=repeatable)

    def _send_patiently(self, request: httpx.Request, *, repeatable: bool) -> httpx.Response:
        def may_repeat(error: Exception) -> bool:
            if isinstance(error, ApiError):
                return repeatable and error.status in PASSING
            return isinstance(error, httpx.ConnectError) or (
                repeatable and isinstance(error, httpx.TransportError)
            )

        try:
            return retry(
                lambda: self._send_once(request),
                when=may_repeat,
                retries=Retries(BACKOFF, tries=TRIES),
                sleep=self.sleep,
            )
        except httpx.TransportError as error:
            raise unreachable(self.connection.url, error) from error

    def upload(
        self, model: type[Model], path: str, content: bytes, *, query: Query, media_type: str
    ) -> Model:
        """Send bytes in a POST. The URL identifies the bytes, so the POST may be repeated.

        Raises:
            ConnectionFailedError: the server could not be reached, or did not respond in time.
            ApiError: the server rejected the request.
        """
        headers = {"Content-Type": media_type}
        request = self.http.build_request(
            "POST", path, params=given(**query), content=content, headers=headers
        )
        return read(model, self._send_patiently(request, repeatable=True))

    def _send_once(self, request: httpx.Request) -> httpx.Response:
        response = self.http.send(request)
        if not response.is_success:
            raise error_of(response)
        return response

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        silence_seconds: float = READ_SECONDS,
    ) -> Iterator[httpx.Response]:
        """Open a response and stream its body; the request is not retried.

        Raises:
            httpx.TransportError: the server could not be reached, or sent nothing for too long.
            ApiError: the server rejected the request.
        """
        with self.http.stream(
            "GET",
            path,
            params=given(**(query or {})),
            headers=headers,
            timeout=httpx.Timeout(silence_seconds, connect=CONNECT_SECONDS),
        ) as response:
            if not response.is_success:
                response.read()
                raise error_of(response)
            yield response

    def close(self) -> None:
        """Close the connections."""
        self.http.close()


def read(model: type[Model], response: httpx.Response) -> Model:
    """Parse a model from a response; unknown fields of a newer server are ignored.

    Raises:
        ConnectionFailedError: the response is not from a Trainyard server.
    """
    try:
        return model.model_validate_json(response.content, extra="ignore")
    except ValidationError as error:
        url = response.request.url
        raise ConnectionFailedError(
            f"the answer of {url} is not a {model.__name__}: is it the address of a Trainyard "
            "server, and of about this version?"
        ) from error


def unreachable(url: str, error: httpx.TransportError) -> ConnectionFailedError:
    """Return the error for a failed connection, with its cause."""
    why = str(error) or type(error).__name__
    if isinstance(error, httpx.TimeoutException):
        why = "no answer in time"
    return ConnectionFailedError(f"Cannot reach the server at {url}: {why}.")


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _content(body: BaseModel | Mapping[str, Any] | None) -> bytes | None:
    if body is None or isinstance(body, BaseModel):
        return None if body is None else body.model_dump_json(exclude_unset=True).encode()
    return json.dumps(body, default=str).encode()
