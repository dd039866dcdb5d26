"""The server from a worker's view, over real HTTP: claims, storage by offsets, orders."""

from __future__ import annotations

import base64
import json
import threading
import time
import zlib
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from trainyard.base.model_base import RecordModel
from trainyard.protocol.job_artifacts.messages import UploadReply
from trainyard.protocol.node_sources.messages import CheckReport, MessagesReply, MessagesRequest
from trainyard.protocol.operations import OperationOutcome
from trainyard.protocol.shell_sessions.messages import (
    ShellExit,
    ShellInputReply,
    ShellInputRequest,
    ShellOrder,
    ShellOutputMessage,
    ShellOutputReply,
)
from trainyard.protocol.states import DesiredState
from trainyard.protocol.worker_messages import (
    MAX_REPORT_BYTES,
    Chunk,
    Claim,
    ClaimReply,
    NodeHeartbeat,
    NodeHeartbeatReply,
    OperationClaimReply,
    OperationReport,
    OperationReportReply,
    PendingRequest,
    Registration,
    RegistrationReply,
    Report,
    ReportReply,
)
from trainyard.run.records import ExitRecord, RequestAnswer

JOIN_TOKEN, NODE_TOKEN = "join-me", "node-token"


def content(chunk: Chunk) -> bytes:
    """Return the bytes of a chunk."""
    return zlib.decompress(base64.b64decode(chunk.content))


class NoError(Exception):
    """A refusal with a status."""

    def __init__(self, status: int, kind: str = "about:blank") -> None:
        super().__init__(status)
        self.status = status
        self.kind = kind


@dataclass
class FakeShell:
    """A command of a person, with its whole input from the start."""

    order: ShellOrder
    given: bytes = b""
    output: bytes = b""
    exit: ShellExit | None = None


@dataclass
class FakeAttempt:
    """The server's state of one attempt on one node."""

    claim: ClaimReply
    claimed: bool = False
    secret: str | None = None
    """Secret of the granted claim."""
    current: bool = True
    desired: DesiredState = DesiredState.RUN
    requests: list[PendingRequest] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=lambda: defaultdict(bytes))
    contents: dict[str, bytes] = field(default_factory=lambda: defaultdict(bytes))
    reports: list[Report] = field(default_factory=list)
    answers: dict[str, RequestAnswer] = field(default_factory=dict)
    duplicated_bytes: int = 0
    exit: ExitRecord | None = None
    exits: int = 0
    shells: dict[str, FakeShell] = field(default_factory=dict)

    @property
    def rank_pids(self) -> dict[int, int]:
        """The newest process ids of ranks."""
        return self.reports[-1].rank_pids if self.reports else {}

    def store(self, report: Report) -> ReportReply:
        """Store new bytes (docs/lifecycle.md, item 13)."""
        acknowledged = {}
        for chunk in report.chunks:
            stored = self.files[chunk.file]
            sent = content(chunk)
            assert len(sent) == chunk.end - chunk.start
            assert not chunk.file.startswith(("metrics", "events")) or sent.endswith(b"\n")
            self.duplicated_bytes += max(0, min(len(stored), chunk.end) - chunk.start)
            if chunk.start <= len(stored) < chunk.end:
                self.files[chunk.file] = stored + sent[len(stored) - chunk.start :]
            acknowledged[chunk.file] = len(self.files[chunk.file])
        self.answers |= report.answers
        self.requests = [one for one in self.requests if one.id not in self.answers]
        if report.exit is not None:
            self.exit = report.exit
            self.exits += 1
        self.reports.append(report)
        return ReportReply(
            acknowledged=acknowledged,
            desired=self.desired,
            requests=tuple(self.requests),
            shells=tuple(one.order for one in self.shells.values() if one.exit is None),
        )


@dataclass
class FakeOperation:
    """The server's state of one operation."""

    claim: OperationClaimReply
    claimed: bool = False
    current: bool = True
    reports: list[OperationReport] = field(default_factory=list)

    @property
    def outcome(self) -> OperationOutcome | None:
        """The outcome."""
        return self.reports[-1].outcome if self.reports else None


class FakeServer:
    """Answers the calls of workers; may go away and come back on the same port."""

    def __init__(self) -> None:
        self.attempts: dict[str, FakeAttempt] = {}
        self.operations: dict[str, FakeOperation] = {}
        self.heartbeats: list[NodeHeartbeat] = []
        self.packs: list[bytes] = []  # content of the answers to fetches of a pack, in turn
        self.fetches = 0
        """Fetches of packs so far."""
        self.accounts: tuple[str, ...] = ()  # to look up
        self.time: float | None = None
        """The server's clock in the answers to heartbeats."""
        self.registrations: list[Registration] = []
        self.checks: list[CheckReport] = []
        self.unnamed = 0
        """Reports of checks that are refused because the engine has not named the pilot."""
        self.polls: list[MessagesRequest] = []
        self.insisted: set[str] = set()
        """Attempts that answers to polls still name after their claim."""
        self.another_worker = False
        """Whether another worker serves the node: 409 to registrations and heartbeats."""
        self.lose_grants = 0
        """Number of replies to claims that are lost after the claim was granted."""
        self.lose_replies = 0
        """Number of replies to reports that are lost after the content was stored."""
        self.refuse_content = False
        """Answer 422 to every report with chunks."""
        self.refuse_provenance = False
        """Answer 422 to every report with provenance."""
        self.refuse_facts = False
        """Answer 422 to every report with facts, like a server without support for them."""
        self.unreadable: bytes | None = None
        """A line that is skipped if it comes alone; with others the report is refused (422)."""
        self.lock = threading.Lock()
        self._http: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._port = 0
        self.open()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def open(self) -> None:
        """Answer again, on the same port."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                fake.answer(self)

            def do_PUT(self) -> None:
                fake.answer(self)

            def do_GET(self) -> None:
                fake.fetches += self.path.endswith("/pack")
                found = fake.packs.pop(0) if self.path.endswith("/pack") else b"{}"
                fake._send(self, 200, found)

            def log_message(self, *_: Any) -> None:
                pass

        ThreadingHTTPServer.allow_reuse_address = True
        ThreadingHTTPServer.daemon_threads = True
        self._http = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))
        self._thread.start()
        self._away = False

    def move(self) -> None:
        """Come back on another port."""
        self._port = 0

    def close(self) -> None:
        """Stop answering; open connections are closed at their next call."""
        if self._http is None:
            return
        assert self._thread is not None
        self._away = True
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        self._http = None

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one call."""
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        token = handler.headers.get("Authorization", "").removeprefix("Bearer ")
        if self._away:  # a connection that was kept open
            handler.close_connection = True
            return
        if handler.path.endswith("/messages"):
            self._wait_for_messages(MessagesRequest.model_validate_json(body))
        try:
            with self.lock:
                reply = self._dispatch(handler.path, token, body)
        except NoError as error:
            problem = {"type": error.kind, "title": "No", "status": error.status, "detail": "no"}
            content = json.dumps(problem | {"request_id": "0"}).encode()
            self._send(handler, error.status, content)
            return
        if reply is None:
            handler.close_connection = True
            return
        self._send(handler, 200, reply.model_dump_json().encode())

    def _dispatch(self, path: str, token: str, body: bytes) -> RecordModel | None:
        words = path.removeprefix("/api/v1/workers/").split("/")
        if words == ["register"]:
            return self._register(Registration.model_validate_json(body), token)
        if words == ["heartbeat"]:
            self._need(token == NODE_TOKEN, 401)
            return self._heartbeat(NodeHeartbeat.model_validate_json(body))
        if words == ["check"]:
            self._need(token == JOIN_TOKEN, 401)
            if self.unnamed:
                self.unnamed -= 1
                raise NoError(409, "/problems/pilot-not-named")
            self.checks.append(CheckReport.model_validate_json(body))
            return MessagesReply()
        if words == ["messages"]:
            self._need(token == NODE_TOKEN, 401)
            return self._messages(MessagesRequest.model_validate_json(body))
        kind, attempt_id, verb, *more = words
        if more:
            return self._part(self.attempts[attempt_id], token, words=[verb, *more], body=body)
        if kind == "operations":
            self._need(token == NODE_TOKEN, 401)
            return self._operation(self.operations.get(attempt_id), verb, body)
        attempt = self.attempts.get(attempt_id)
        if verb == "claim":
            self._need(token == NODE_TOKEN, 401)
            return self._claim(attempt, Claim.model_validate_json(body))
        return self._report(attempt, token, body)

    def _register(self, registration: Registration, token: str) -> RegistrationReply:
        self._need(token in (JOIN_TOKEN, NODE_TOKEN), 401)
        self.registrations.append(registration)
        self._need(not self.another_worker, 409)
        joined = token == JOIN_TOKEN
        return RegistrationReply(node_token=NODE_TOKEN if joined else None, heartbeat_seconds=0.2)

    def _heartbeat(self, heartbeat: NodeHeartbeat) -> NodeHeartbeatReply:
        self._need(not self.another_worker, 409)
        self.heartbeats.append(heartbeat)
        for attempt_id in heartbeat.gone:
            self.attempts[attempt_id].current = False
        return NodeHeartbeatReply(
            expected=tuple(
                attempt_id
                for attempt_id, attempt in self.attempts.items()
                if attempt.claimed and attempt.current and attempt.exit is None
            ),
            time=time.time() if self.time is None else self.time,
            accounts=self.accounts,
        )

    def _wait_for_messages(self, request: MessagesRequest) -> None:
        deadline = time.monotonic() + request.wait_seconds
        while not self._away and time.monotonic() < deadline:
            with self.lock:
                if self._messages(request, note=False) != MessagesReply():
                    return
            time.sleep(0.01)

    def _messages(self, request: MessagesRequest, *, note: bool = True) -> MessagesReply:
        if note:
            self.polls.append(request)
        attempts = (i for i, a in self.attempts.items() if not a.claimed or i in self.insisted)
        operations = (i for i, o in self.operations.items() if not o.claimed)
        return MessagesReply(
            attempts=tuple(i for i in attempts if i not in request.known),
            operations=tuple(i for i in operations if i not in request.known),
        )

    def _claim(self, attempt: FakeAttempt | None, claim: Claim) -> ClaimReply | None:
        if attempt is None:
            raise NoError(409)
        repeated = claim.secret is not None and claim.secret == attempt.secret
        self._need(repeated or not attempt.claimed, 409)
        attempt.claimed, attempt.secret = True, claim.secret
        if self.lose_grants:
            self.lose_grants -= 1
            return None
        return attempt.claim

    def _operation(self, operation: FakeOperation | None, verb: str, body: bytes) -> RecordModel:
        if operation is None or not operation.current:
            raise NoError(409)
        if verb == "claim":
            self._need(not operation.claimed, 409)
            operation.claimed = True
            return operation.claim
        report = OperationReport.model_validate_json(body)
        self._need(report.fence == operation.claim.fence, 409)
        operation.reports.append(report)
        return OperationReportReply(ended=report.outcome is not None)

    @staticmethod
    def _shell(shell: FakeShell, stream: str, body: bytes) -> RecordModel:
        if stream == "input":
            start = ShellInputRequest.model_validate_json(body).start
            return ShellInputReply(content=shell.given[start:], end=True)
        message = ShellOutputMessage.model_validate_json(body)
        shell.output += message.content[len(shell.output) - message.start :]
        shell.exit = message.exit
        return ShellOutputReply(stored=len(shell.output), wanted=True)

    def _report(self, attempt: FakeAttempt | None, token: str, body: bytes) -> ReportReply | None:
        self._need(len(body) <= MAX_REPORT_BYTES, 413)
        if attempt is None or token != attempt.claim.attempt_token:
            raise NoError(401)
        self._need(attempt.current, 409)
        report = Report.model_validate_json(body)
        self._need(not (self.refuse_content and report.chunks), 422)
        self._need(not (self.refuse_provenance and report.provenance), 422)
        self._need(not (self.refuse_facts and report.facts), 422)
        self._need(not any(self._holds_unreadable(chunk) for chunk in report.chunks), 422)
        reply = attempt.store(report)
        if self.lose_replies:
            self.lose_replies -= 1
            return None
        return reply

    def _part(
        self, attempt: FakeAttempt, token: str, *, words: list[str], body: bytes
    ) -> RecordModel:
        self._need(token == attempt.claim.attempt_token, 401)
        if words[0] == "artifacts":
            return self._upload(attempt, words[1], body)
        return self._shell(attempt.shells[words[1]], words[2], body)

    def _upload(self, attempt: FakeAttempt, target: str, body: bytes) -> UploadReply:
        self._need(attempt.current, 409)
        digest, _, query = target.partition("?")
        if dict(parse_qsl(query))["offset"] == str(len(attempt.contents[digest])):
            attempt.contents[digest] += body
        return UploadReply(stored=len(attempt.contents[digest]))

    def _holds_unreadable(self, chunk: Chunk) -> bool:
        lines = content(chunk).splitlines()
        return self.unreadable in lines and len(lines) > 1

    @staticmethod
    def _need(holds: bool, status: int) -> None:
        if not holds:
            raise NoError(status)

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        with suppress(BrokenPipeError):  # the poller has ended
            handler.end_headers()
            handler.wfile.write(body)
