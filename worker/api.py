"""The calls that a worker and its supervisors make to the server.

They raise `ApiError` where the server refuses, and `ServerAway` where the same call may succeed
later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Self, TypeVar

import httpx
from pydantic import ValidationError

from trainyard.base.backoff import Backoff, Retries, retry
from trainyard.base.model_base import RecordModel
from trainyard.protocol.rest.errors import ApiError, TrainyardError, error_of
from trainyard.protocol.worker_messages import (
    Claim,
    ClaimReply,
    NodeHeartbeat,
    NodeHeartbeatReply,
    OperationClaimReply,
    OperationReport,
    OperationReportReply,
    Registration,
    RegistrationReply,
    Report,
    ReportReply,
)

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 15.0
CLAIM_SECONDS = 30.0
BACKOFF = Backoff(first=0.1, longest=5.0)
RETRIED_STATUSES = frozenset({408, 425, 429})

Reply = TypeVar("Reply", bound=RecordModel)
Answer = TypeVar("Answer")


class ServerAway(TrainyardError):  # noqa: N818 - a condition, not a mistake
    """The server did not answer, or answered that it cannot just now."""


class WorkerApi:
    """A connection to the server with one token.

    Every method raises `ServerAway` or `ApiError`.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self._client = httpx.Client(timeout=TIMEOUT_SECONDS)
        self.url = url
        """URL of the server; may change between two calls."""
        self.token = token
        """Bearer token; may change between two calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def register(self, registration: Registration) -> RegistrationReply:
        """Introduce the node."""
        return self._post("register", registration, RegistrationReply)

    def heartbeat(self, heartbeat: NodeHeartbeat) -> NodeHeartbeatReply:
        """Say that the node lives."""
        return self._post("heartbeat", heartbeat, NodeHeartbeatReply)

    def claim(self, attempt_id: str, claim: Claim) -> ClaimReply:
        """Take on the node's share of an attempt; 409 when another claim has done that."""
        return self._post(f"attempts/{attempt_id}/claim", claim, ClaimReply)

    def report(self, attempt_id: str, report: Report) -> ReportReply:
        """Say what is new of an attempt, and hear what is wanted of it."""
        return self._post(f"attempts/{attempt_id}/report", report, ReportReply)

    def claim_operation(self, operation_id: str, claim: Claim) -> OperationClaimReply:
        """Take on an operation; 409 when that has been done, or it was given to another node."""
        return self._post(f"operations/{operation_id}/claim", claim, OperationClaimReply)

    def report_operation(self, operation_id: str, report: OperationReport) -> OperationReportReply:
        """Report the progress or the outcome of an operation; 409 after a later claim."""
        return self._post(f"operations/{operation_id}/report", report, OperationReportReply)

    def _post(self, path: str, body: RecordModel, kind: type[Reply]) -> Reply:
        headers = {"Content-Type": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            response = self._client.post(
                f"{self.url.rstrip('/')}/api/v1/workers/{path}",
                content=body.model_dump_json(),
                headers=headers,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerAway(f"{self.url}: {error or type(error).__name__}") from error
        if response.status_code >= 500 or response.status_code in RETRIED_STATUSES:
            raise ServerAway(f"{self.url}: status {response.status_code}")
        if response.status_code >= 400:
            raise error_of(response)
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as error:  # a proxy's page, or a server of another version
            raise ServerAway(f"{self.url}: no {kind.__name__}: {error}") from error


def claimed(what: str, call: Callable[[], Answer]) -> Answer | None:
    """Return what a claim grants; None where the server refuses it.

    Raises:
        ServerAway: the server does not answer; the message will come again.
    """
    try:
        return persist(call, for_seconds=CLAIM_SECONDS)
    except ApiError as refusal:
        logger.info("no claim to %s: %s", what, refusal)
        return None


def persist(call: Callable[[], Answer], *, for_seconds: float) -> Answer:
    """Return what `call` returns, trying again while the server is away.

    Raises:
        ServerAway: it still was after `for_seconds`.
        ApiError: the server refused.
    """
    return retry(
        call,
        when=lambda error: isinstance(error, ServerAway),
        retries=Retries(BACKOFF, for_seconds=for_seconds),
    )
