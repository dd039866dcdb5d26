"""A bucket of a real S3 server for a test, and the server's faults."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.storage.object_path import ObjectPath


@dataclass(frozen=True)
class Server:
    """An S3 server on loopback."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables for clients, which search nowhere else."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "shown-nowhere",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_MAX_ATTEMPTS": "3",
        }

    def make_bucket(self, name: str) -> ObjectPath:
        """Create a bucket and return its root."""
        self._ask("PUT", f"/{name}")
        return ObjectPath(name)

    def fail(self, *faults: dict[str, Any]) -> None:
        """Make the next requests fail; forget earlier faults and requests."""
        self._ask("POST", "/_faults", json.dumps(faults).encode())

    def requests(self, part: str = "") -> list[str]:
        """Return the requests since `fail` that hold a text."""
        lines: list[str] = json.loads(self._ask("GET", "/_log"))
        return [line for line in lines if part in line]

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, data=body, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            content: bytes = answer.read()
        return content


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server while the block runs."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.communicate(timeout=30)
