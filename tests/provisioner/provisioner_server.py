"""The server from a provisioner's view, over real HTTP: registrations, claims, reports."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainyard.base.model_base import RecordModel
from trainyard.protocol.node_sources.messages import (
    RequestClaim,
    RequestOrder,
    SourceRegistration,
    SourceRegistrationReply,
    SourceReport,
    SourceReportReply,
)

JOIN_TOKEN, SOURCE_TOKEN = "ty_join_x", "ty_source_x"


class ProvisionerServer:
    """Answers the three calls of provisioners."""

    def __init__(self) -> None:
        self.registrations: list[SourceRegistration] = []
        self.claims: dict[str, RequestClaim] = {}
        self.reports: list[SourceReport] = []
        self.orders: dict[str, RequestOrder] = {}
        """Requests that are known; a claim of another one gets 404."""
        self.cancel: tuple[str, ...] = ()
        """Requests to cancel, in the replies to complete listings."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                words = self.path.removeprefix("/api/v1/provisioners/").split("/")
                status, reply = fake.answer(words, token, body)
                content = reply.model_dump_json() if reply else json.dumps({"detail": "no"})
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content.encode())

            def log_message(self, *_: Any) -> None:
                pass

        ThreadingHTTPServer.daemon_threads = True
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def withdraw(self, request_id: str) -> None:
        """Withdraw a request."""
        order = RequestOrder(
            request_id=request_id, purpose="nodes", nodes=2, seconds=3600, wanted=False
        )
        self.orders[request_id] = order

    def close(self) -> None:
        """Stop answering."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def answer(self, words: list[str], token: str, body: bytes) -> tuple[int, RecordModel | None]:
        """Return status and content for one call."""
        if words == ["register"]:
            if token not in (JOIN_TOKEN, SOURCE_TOKEN):
                return 401, None
            self.registrations.append(SourceRegistration.model_validate_json(body))
            joined = token == JOIN_TOKEN
            return 200, SourceRegistrationReply(source_token=SOURCE_TOKEN if joined else None)
        if token != SOURCE_TOKEN:
            return 401, None
        if words == ["report"]:
            report = SourceReport.model_validate_json(body)
            self.reports.append(report)
            return 200, SourceReportReply(cancel=self.cancel if report.complete else ())
        _, request_id, _ = words
        claim = RequestClaim.model_validate_json(body)
        if request_id not in self.orders:
            return 404, None
        order = self.orders[request_id]
        if order.wanted:
            if len(claim.secret_hashes) < order.nodes:
                return 422, None
            if self.claims.setdefault(request_id, claim) != claim:
                return 409, None
        return 200, order
