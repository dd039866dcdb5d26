"""An issuer whose replies a test chooses: what a certified issuer never sends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.server.api.in_process import TestClient
from tests.server.api.sso.issuers import API, CALLBACK, LOGIN, query_of

CLIENT_ID = "trainyard"


def new_key(kid: str) -> RSAKey:
    """Return a new key of the issuer."""
    return RSAKey.generate_key(2048, {"kid": kid})


@dataclass
class WrongIssuer:
    """An issuer with replies that a test chooses."""

    url: str = ""
    keys: list[Any] = field(default_factory=lambda: [new_key("first")])
    nonce: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    """Claims that differ from valid ones; None leaves a claim out."""
    sign: Callable[[dict[str, Any]], str] | None = None
    """Makes the ID token; by default with the last key."""
    replies: dict[str, Any] = field(default_factory=dict)
    """Bodies by path, in place of the usual ones: JSON, bytes, or a status."""
    metadata: dict[str, Any] = field(default_factory=dict)
    forms: list[dict[str, str]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    user_info: dict[str, Any] = field(default_factory=dict)

    def id_token(self) -> str:
        """Return the ID token of the next login."""
        now = int(time.time())
        valid = {
            "iss": self.url,
            "aud": CLIENT_ID,
            "sub": "one",
            "nonce": self.nonce,
            "iat": now,
            "exp": now + 300,
        }
        claims = {name: value for name, value in (valid | self.claims).items() if value is not None}
        return self.signed(claims) if self.sign is None else self.sign(claims)

    def signed(self, claims: Mapping[str, Any], **header: Any) -> str:
        """Return a token that the last key has signed."""
        key = self.keys[-1]
        head = {"alg": "RS256", "kid": key.kid, **header}
        return jwt.encode(head, dict(claims), key, algorithms=[head["alg"]])

    def reply(self, path: str) -> Any:
        """Return the body of a path."""
        if path in self.replies:
            return self.replies[path]
        if path == "/.well-known/openid-configuration":
            found = {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/auth",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
                "userinfo_endpoint": f"{self.url}/me",
                "end_session_endpoint": f"{self.url}/end?tenant=1",
            }
            return found | self.metadata
        if path == "/keys":
            return {"keys": [key.as_dict(private=False) for key in self.keys]}
        if path == "/token":
            return {"access_token": "a", "token_type": "Bearer", "id_token": self.id_token()}
        if path == "/me":
            return {"sub": "one", "preferred_username": "one", **self.user_info}
        return 404


@contextmanager
def wrong_issuer() -> Iterator[WrongIssuer]:
    """Run an issuer in a thread."""
    issuer = WrongIssuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            issuer.forms.append({**form, "authorization": self.headers.get("authorization", "")})
            self._answer()

        def _answer(self) -> None:
            issuer.requests.append(self.path)
            found = issuer.reply(self.path)
            if callable(found):
                found(self)
                return
            status = found if isinstance(found, int) else 200
            body = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def log_in(issuer: WrongIssuer, browser: TestClient, **given: str) -> str:
    """Log in; return the path to which the server sends the browser."""
    page = browser.get(LOGIN, params={"next": "/queue"}).headers["location"]
    if page.startswith("/"):
        return page
    asked = query_of(page)
    issuer.nonce = asked["nonce"]
    query = {"state": asked["state"], "code": "x", **given}
    return browser.get(CALLBACK, params=query).headers["location"]


def is_logged_in(browser: TestClient) -> bool:
    """Return whether a browser has a session."""
    return browser.get(f"{API}/auth/session").status_code == 200
