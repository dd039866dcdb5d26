"""HTTP calls to the issuer: each has a limit on its time, its size and the number at once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlencode

import httpx

from server.api.sso.faults import LoginError, LoginFault
from trainyard.outside.http_client import async_http_client
from trainyard.outside.proxies import ProxyError

MAX_BYTES = 512 * 1024
"""Maximum size of a response of the issuer, in bytes."""
CALL_SECONDS = 10.0
"""Maximum time of a call, in seconds."""
READ_SECONDS = 5.0
"""Maximum time for a connection, and between two parts of a response, in seconds."""
MAX_CALLS = 8
"""Maximum number of calls at once; further ones fail at once, so that a slow issuer does not occupy
the threads of the server."""


class IssuerCalls:
    """Sends requests to the issuer; also the session of Authlib's `OAuth2Client`."""

    def __init__(self) -> None:
        # Made once, because that takes longer than a call.
        self._certificates = httpx.create_ssl_context()
        self._free = threading.BoundedSemaphore(MAX_CALLS)

    def get(self, url: str, *, token: str | None = None) -> dict[str, Any]:
        """Return the JSON object at a URL.

        Raises:
            LoginError: the issuer is down, its response is no JSON object, or too many calls run.
        """
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        response = self._send("GET", url, headers=headers)
        if response.status_code != httpx.codes.OK:
            raise _failed(url, f"has the status {response.status_code}", response.status_code)
        try:
            found = json.loads(response.content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise LoginError(LoginFault.INVALID, f"the response of {url} is no JSON object")
        return found

    def post(
        self, url: str, *, data: Mapping[str, str], headers: Mapping[str, str], auth: Any
    ) -> httpx.Response:
        """Send a form with the authentication of Authlib's `ClientAuth`; Authlib calls this."""
        target, sent, body = auth.prepare("POST", url, dict(headers), urlencode(data))
        response = self._send("POST", target, headers=sent, body=body)
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise _failed(url, f"has the status {response.status_code}", response.status_code)
        return response

    def _send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: str | None = None
    ) -> httpx.Response:
        if not self._free.acquire(blocking=False):
            raise LoginError(LoginFault.BUSY, f"{MAX_CALLS} calls to the issuer are in progress")
        with ExitStack() as held:
            held.callback(self._free.release)
            try:
                return asyncio.run(self._read(method, url, headers=headers, body=body))
            except TimeoutError:
                detail = f"{url} took more than {CALL_SECONDS:.0f} seconds"
                raise LoginError(LoginFault.ISSUER_DOWN, detail) from None
            except (httpx.HTTPError, httpx.InvalidURL, ProxyError) as error:
                raise LoginError(LoginFault.ISSUER_DOWN, f"{url}: {error!r}") from None

    async def _read(
        self, method: str, url: str, *, headers: Mapping[str, str], body: str | None
    ) -> httpx.Response:
        parts, size = list[bytes](), 0
        # Raw bytes without compression: a small response could otherwise unpack to a huge one.
        sent = {"accept": "application/json", **headers, "accept-encoding": "identity"}
        # A coroutine, because only that ends in time while the issuer sends its headers slowly.
        async with (
            asyncio.timeout(CALL_SECONDS),
            async_http_client(url, verify=self._certificates, timeout=READ_SECONDS) as client,
            client.stream(method, url, headers=sent, content=body) as response,
        ):
            async for part in response.aiter_raw():
                size += len(part)
                if size > MAX_BYTES:
                    detail = f"the response of {url} is over the limit of {MAX_BYTES:,} bytes"
                    raise LoginError(LoginFault.INVALID, detail)
                parts.append(part)
        request = httpx.Request(method, url)
        return httpx.Response(response.status_code, content=b"".join(parts), request=request)


def _failed(url: str, why: str, status: int) -> LoginError:
    is_down = status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS
    fault = LoginFault.ISSUER_DOWN if is_down else LoginFault.INVALID
    return LoginError(fault, f"the response of {url} {why}")
