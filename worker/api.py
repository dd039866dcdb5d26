"""The calls that a worker and its supervisors make to the server.

The calls raise `ApiError` if the server refuses, and `ServerAway` if a repetition may succeed.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, Self, TypeVar

import httpx
from pydantic import ValidationError

from trainyard.base.backoff import Backoff, Retries, retry
from trainyard.base.loopback import uses_tls
from trainyard.base.model_base import RecordModel
from trainyard.outside.http_client import http_client
from trainyard.protocol.job_artifacts.messages import UploadReply
from trainyard.protocol.node_sources.messages import (
    CheckReport,
    MessagesReply,
    MessagesRequest,
)
from trainyard.protocol.rest.errors import ApiError, TrainyardError, error_of
from trainyard.protocol.shell_sessions.messages import (
    ShellInputReply,
    ShellInputRequest,
    ShellOutputMessage,
    ShellOutputReply,
)
from trainyard.protocol.worker_messages import (
    Claim,
    ClaimReply,
    EndedJobsReply,
    EndedJobsRequest,
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
from trainyard.spec.code_pack import MAX_PACK_BYTES

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 15.0
CLAIM_SECONDS = 30.0
BACKOFF = Backoff(first=0.1, longest=5.0)
RETRIED_STATUSES = frozenset({408, 425, 429})

Reply = TypeVar("Reply", bound=RecordModel)
Answer = TypeVar("Answer")


class ServerAway(TrainyardError):  # noqa: N818 - a condition, not a mistake
    """The server did not respond, or responded that it is temporarily unavailable."""


class WorkerApi:
    """A connection to the server with one token.

    Every method raises `ServerAway` or `ApiError`.
    """

    def __init__(self, url: str, token: str | None, *, ca_file: Path | None = None) -> None:
        """Prepare a connection through the environment's proxy; the first call opens it.

        Calls to a server on this machine use no proxy.

        Args:
            url: URL of the server.
            token: bearer token.
            ca_file: file of the only trusted certificates; by default, the system's certificates
                are trusted.

        Raises:
            ValueError: `ca_file` cannot be read or holds no certificate, or the environment's proxy
                for the server cannot be used.
        """
        self._trusted = _trust(ca_file)
        self._clients: dict[bool, httpx.Client] = {}
        self.ca_file = ca_file
        """File of the only trusted certificates; None for the system's usual ones."""
        self.url = url
        """URL of the server; may change between two calls."""
        self.token = token
        """Bearer token; may change between two calls."""
        self._client(url)  # raise for unusable values here, not in a thread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()

    def register(self, registration: Registration) -> RegistrationReply:
        """Register the node."""
        return self._post("register", registration, RegistrationReply)

    def heartbeat(self, heartbeat: NodeHeartbeat) -> NodeHeartbeatReply:
        """Report that the node is alive."""
        return self._post("heartbeat", heartbeat, NodeHeartbeatReply)

    def ended_jobs(self, request: EndedJobsRequest) -> EndedJobsReply:
        """Return the ended and the unknown jobs among the jobs of the request."""
        return self._post("ended-jobs", request, EndedJobsReply)

    def messages(self, request: MessagesRequest) -> MessagesReply:
        """Return launches and operations to claim; wait until there is one, up to the timeout."""
        seconds = request.wait_seconds + TIMEOUT_SECONDS
        return self._post("messages", request, MessagesReply, seconds=seconds)

    def check(self, report: CheckReport) -> None:
        """Send the findings of a check; the token of the call is the node's join secret."""
        self._send("check", report, seconds=TIMEOUT_SECONDS)

    def server_date(self) -> float:
        """Return the server's clock in whole seconds, Unix time.

        Raises:
            ServerAway: the server does not respond, or its response has no `Date`.
        """
        try:
            url = f"{self.url.rstrip('/')}/healthz"
            response = self._client(url).get(url)
            return parsedate_to_datetime(response.headers["date"]).timestamp()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerAway(f"{self.url}: {error or type(error).__name__}") from error
        except (KeyError, ValueError) as error:
            raise ServerAway(f"{self.url}: an answer without a time: {error!r}") from error

    def claim(self, attempt_id: str, claim: Claim) -> ClaimReply:
        """Claim the node's share of an attempt; 409 if another claim came first."""
        return self._post(f"attempts/{attempt_id}/claim", claim, ClaimReply)

    def report(self, attempt_id: str, report: Report) -> ReportReply:
        """Report the state of an attempt; return the server's order for the attempt."""
        return self._post(f"attempts/{attempt_id}/report", report, ReportReply)

    def shell_output(
        self, attempt_id: str, shell_id: str, message: ShellOutputMessage
    ) -> ShellOutputReply:
        """Send the output of a person's command, and the command's exit once it has ended."""
        path = f"attempts/{attempt_id}/shells/{shell_id}/output"
        return self._post(path, message, ShellOutputReply)

    def shell_input(
        self, attempt_id: str, shell_id: str, request: ShellInputRequest
    ) -> ShellInputReply:
        """Wait for input of a person's command."""
        path = f"attempts/{attempt_id}/shells/{shell_id}/input"
        return self._post(path, request, ShellInputReply)

    def fetch_pack(self, attempt_id: str, target: IO[bytes]) -> None:
        """Write the pack of the attempt's job to `target`; the caller has to verify its digest.

        Raises:
            OSError: the file cannot be written, for example because the disk is full.
        """
        url = f"{self.url.rstrip('/')}/api/v1/workers/attempts/{attempt_id}/pack"
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            with self._client(url).stream("GET", url, headers=headers) as response:
                if response.status_code >= 400:
                    response.read()
                self._refuse(response)
                written = 0
                for part in response.iter_raw():
                    written += len(part)
                    if written > MAX_PACK_BYTES:
                        raise ServerAway(
                            f"{self.url}: a pack of more than {MAX_PACK_BYTES:,} bytes"
                        )
                    target.write(part)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerAway(f"{self.url}: {error or type(error).__name__}") from error

    def upload_artifact(
        self, attempt_id: str, digest: str, *, offset: int, size: int, block: bytes
    ) -> UploadReply:
        """Upload a block of an artifact's content; the reply has the next block's offset."""
        content = self._request(
            "PUT",
            f"attempts/{attempt_id}/artifacts/{digest}?offset={offset}&size={size}",
            block,
            media_type="application/octet-stream",
            seconds=TIMEOUT_SECONDS,
        )
        return self._read(content, UploadReply)

    def claim_operation(self, operation_id: str, claim: Claim) -> OperationClaimReply:
        """Claim an operation; 409 if another claim came first, or if another node has the
        operation.
        """
        return self._post(f"operations/{operation_id}/claim", claim, OperationClaimReply)

    def report_operation(self, operation_id: str, report: OperationReport) -> OperationReportReply:
        """Report progress or outcome of an operation; 409 if a later claim exists."""
        return self._post(f"operations/{operation_id}/report", report, OperationReportReply)

    def _client(self, url: str) -> httpx.Client:
        """Return the client for a URL; the first call creates it.

        URLs with and without TLS have separate clients; the client without TLS verifies no
        certificate.
        """
        tls = uses_tls(url)
        if tls not in self._clients:
            verify = self._trusted if tls else False
            self._clients[tls] = http_client(url, timeout=TIMEOUT_SECONDS, verify=verify)
        return self._clients[tls]

    def _post(
        self, path: str, body: RecordModel, kind: type[Reply], *, seconds: float = TIMEOUT_SECONDS
    ) -> Reply:
        return self._read(self._send(path, body, seconds=seconds), kind)

    def _read(self, content: bytes, kind: type[Reply]) -> Reply:
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:  # from a proxy, or from another server version
            # The reply to a claim has secrets, which the error and its traceback would show.
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            why = f"{place}: {first['msg']}" if place else first["msg"]
            raise ServerAway(f"{self.url}: no {kind.__name__}: {why}") from None

    def _send(self, path: str, body: RecordModel, *, seconds: float) -> bytes:
        content = body.model_dump_json().encode()
        return self._request("POST", path, content, media_type="application/json", seconds=seconds)

    def _request(
        self, method: str, path: str, content: bytes, *, media_type: str, seconds: float
    ) -> bytes:
        url = f"{self.url.rstrip('/')}/api/v1/workers/{path}"
        headers = {"Content-Type": media_type}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            response = self._client(url).request(
                method, url, content=content, headers=headers, timeout=seconds
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerAway(f"{self.url}: {error or type(error).__name__}") from error
        self._refuse(response)
        return response.content

    def _refuse(self, response: httpx.Response) -> None:
        if response.status_code >= 500 or response.status_code in RETRIED_STATUSES:
            raise ServerAway(f"{self.url}: status {response.status_code}")
        if response.status_code >= 400:
            raise error_of(response)


def _trust(ca_file: Path | None) -> ssl.SSLContext | bool:
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # SSLError is an OSError
        raise ValueError(
            f"TRAINYARD_CA_FILE={ca_file} is no file of certificates: {error}"
        ) from None


def claimed(what: str, call: Callable[[], Answer]) -> Answer | None:
    """Return the reply to a claim; None if the server refuses the claim.

    Raises:
        ServerAway: the server does not respond; it will repeat the message that led to this claim.
    """
    try:
        return persist(call, for_seconds=CLAIM_SECONDS)
    except ApiError as refusal:
        logger.info("no claim to %s: %s", what, refusal)
        return None


def persist(call: Callable[[], Answer], *, for_seconds: float) -> Answer:
    """Return the result of `call`; repeat the call while the server is unreachable.

    Raises:
        ServerAway: the server was still unreachable after `for_seconds`.
        ApiError: the server refused the call.
    """
    return retry(
        call,
        when=lambda error: isinstance(error, ServerAway),
        retries=Retries(BACKOFF, for_seconds=for_seconds),
    )
