"""The calls that a worker and its supervisors make to the server.

ApiError
├── ServerAway     no answer, or none that says anything: try again later
└── Refused        the server understood and says no
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeVar

import httpx
from pydantic import ValidationError

from specs.base import RecordModel
from specs.reports import (
    PROTOCOL,
    ChoreClaimReply,
    ChoreReport,
    ChoreReportReply,
    Claim,
    ClaimReply,
    NodeHeartbeat,
    NodeHeartbeatReply,
    Registration,
    RegistrationReply,
    Report,
    ReportReply,
    WorkerIdentity,
)

TIMEOUT_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 5.0
RETRIED_STATUSES = frozenset({408, 425, 429})

Reply = TypeVar("Reply", bound=RecordModel)
Answer = TypeVar("Answer")


class ApiError(Exception):
    """A call to the server did not succeed."""


class ServerAway(ApiError):  # noqa: N818 - a condition, not a mistake
    """The server did not answer, or answered that it cannot just now."""


class Refused(ApiError):  # noqa: N818
    """The server refused the call."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status


class WorkerApi:
    """A connection to the server with one token.

    Every method raises `ServerAway` or `Refused`.
    """

    def __init__(
        self, url: str, token: str | None, *, worker: WorkerIdentity | None = None
    ) -> None:
        self._client = httpx.Client(timeout=TIMEOUT_SECONDS)
        self.worker = worker
        """The worker that registers, beats and claims; supervisors need none."""
        self.url = url
        """URL of the server; may change between two calls."""
        self.token = token
        """Bearer token; may change between two calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def register(self, registration: Registration) -> RegistrationReply:
        """Introduce the node."""
        return self._post("register", registration, RegistrationReply)

    def heartbeat(self, heartbeat: NodeHeartbeat) -> NodeHeartbeatReply:
        """Say that the node lives."""
        return self._post("heartbeat", heartbeat, NodeHeartbeatReply)

    def claim(self, attempt_id: str, *, node: str) -> ClaimReply:
        """Take on the node's share of an attempt; 409 when that has been done."""
        claim = Claim(protocol=PROTOCOL, node=node, worker=self.worker)
        return self._post(f"attempts/{attempt_id}/claim", claim, ClaimReply)

    def report(self, attempt_id: str, report: Report) -> ReportReply:
        """Say what is new of an attempt, and hear what is wanted of it."""
        return self._post(f"attempts/{attempt_id}/report", report, ReportReply)

    def claim_chore(self, chore_id: str, *, node: str) -> ChoreClaimReply:
        """Take on a chore; 409 when that has been done, or it was given to another node."""
        claim = Claim(protocol=PROTOCOL, node=node, worker=self.worker)
        return self._post(f"chores/{chore_id}/claim", claim, ChoreClaimReply)

    def report_chore(self, chore_id: str, report: ChoreReport) -> ChoreReportReply:
        """Say how far a chore is, or how it ended; 409 when another claim has outrun this one."""
        return self._post(f"chores/{chore_id}/report", report, ChoreReportReply)

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
            raise Refused(response.status_code, _detail(response))
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as error:  # a proxy's page, or a server of another version
            raise ServerAway(f"{self.url}: no {kind.__name__}: {error}") from error


def pauses() -> Iterator[float]:
    """Yield the seconds to wait before each further try: doubling, at most 5, a little random.

    Random, so that a hundred supervisors do not come back all at once.
    """
    pause = 0.1
    while True:
        yield pause * random.uniform(0.75, 1.0)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def persist(call: Callable[[], Answer], *, for_seconds: float) -> Answer:
    """Return what `call` returns, trying again while the server is away.

    Raises:
        ServerAway: it still was after `for_seconds`.
        Refused: the server refused.
    """
    give_up_at = time.monotonic() + for_seconds
    for pause in pauses():
        try:
            return call()
        except ServerAway:
            if time.monotonic() + pause > give_up_at:
                raise
        time.sleep(pause)
    raise AssertionError("pauses never end")


def _detail(response: httpx.Response) -> str:
    try:
        problem = response.json()
    except ValueError:
        return response.text[:500]
    return str(problem.get("detail", problem))[:2000] if isinstance(problem, dict) else str(problem)
