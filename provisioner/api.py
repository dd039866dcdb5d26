"""The calls that a provisioner makes to the server."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

import httpx
from pydantic import ValidationError

from trainyard.base.backoff import Backoff, Retries, retry
from trainyard.base.model_base import RecordModel
from trainyard.outside.http_client import http_client
from trainyard.protocol.node_sources.messages import (
    RequestClaim,
    RequestOrder,
    SourceRegistration,
    SourceRegistrationReply,
    SourceReport,
    SourceReportReply,
)
from trainyard.protocol.rest.errors import ConnectionFailedError, error_of

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 15.0
BACKOFF = Backoff(first=0.2, longest=5.0)
RETRIED_STATUSES = frozenset({408, 425, 429})

Reply = TypeVar("Reply", bound=RecordModel)
Answer = TypeVar("Answer")


class ProvisionerApi:
    """A connection to the server that authenticates with one token.

    Every method raises `ApiError` if the server refuses, and `ConnectionFailedError` if the same
    call may succeed later.
    """

    def __init__(self, url: str, token: str | None, *, ca_file: Path | None = None) -> None:
        """Prepare the connection, which uses the environment's proxy and opens at the first call.

        Raises:
            ProxyError: an environment variable names an unusable proxy for the server.
        """
        verify = None if ca_file is None else ssl.create_default_context(cafile=ca_file)
        self._client = http_client(url, timeout=TIMEOUT_SECONDS, verify=verify)
        self._url = url.rstrip("/")
        self.token = token
        """Bearer token; may change between two calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def register(self, registration: SourceRegistration) -> SourceRegistrationReply:
        """Register a source, or changes to a registered source."""
        return self._post("register", registration, SourceRegistrationReply)

    def claim(self, request_id: str, claim: RequestClaim) -> RequestOrder:
        """Claim a request; a repeated claim with the same hashes of join secrets is granted."""
        return self._post(f"requests/{request_id}/claim", claim, RequestOrder)

    def report(self, report: SourceReport) -> SourceReportReply:
        """Report the result of a call to an engine; the reply names jobs to cancel."""
        return self._post("report", report, SourceReportReply)

    def _post(self, path: str, body: RecordModel, kind: type[Reply]) -> Reply:
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            response = self._client.post(
                f"{self._url}/api/v1/provisioners/{path}",
                content=body.model_dump_json(),
                headers=headers,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConnectionFailedError(f"{self._url}: {error or type(error).__name__}") from error
        if response.status_code >= 500 or response.status_code in RETRIED_STATUSES:
            raise ConnectionFailedError(f"{self._url}: status {response.status_code}")
        if response.status_code >= 400:
            raise error_of(response)
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as error:  # a proxy's page, or another server version
            raise ConnectionFailedError(f"{self._url}: no {kind.__name__}: {error}") from error


def persevere(call: Callable[[], Answer], *, for_seconds: float) -> Answer:
    """Return the result of `call`; repeat the call while the server does not respond.

    Each new reason is logged once, so that an unknown certificate or a wrong address does not look
    like a slow server.

    Raises:
        ConnectionFailedError: the server still did not respond after `for_seconds`.
        ApiError: the server refused the call.
    """
    logged = ""

    def is_passing(error: Exception) -> bool:
        nonlocal logged
        if not isinstance(error, ConnectionFailedError):
            return False
        if str(error) != logged:
            logged = str(error)
            logger.warning("no answer of the server, which is tried again: %s", logged)
        return True

    return retry(
        call,
        when=is_passing,
        retries=Retries(BACKOFF, for_seconds=for_seconds),
    )
