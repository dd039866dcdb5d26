"""Shared by tests of artifacts: a server that accepts blocks, and the sent contents."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.worker.conftest import Attempt
from trainyard.protocol.job_artifacts.messages import UploadReply
from trainyard.protocol.record_parser import parse_record
from trainyard.run.artifacts.artifact_records import ArtifactLine
from worker.artifacts.uploader import ArtifactUploader
from worker.node.node_store import WorkerRun


def lines_of(attempt: Attempt) -> list[ArtifactLine]:
    text = attempt.seen.files["artifacts"]
    return [parse_record(ArtifactLine, line) for line in text.splitlines()]


def names(lines: list[ArtifactLine]) -> list[str]:
    return [line.record.name for line in lines if line.record is not None]


def digest_of(stored: bytes) -> str:
    return f"sha256:{hashlib.sha256(stored).hexdigest()}"


class FakeApi:
    """Accepts blocks; before that, the actions of `script` happen in turn."""

    def __init__(self, *script: Exception | UploadReply) -> None:
        self.script = list(script)
        self.content = b""

    def upload_artifact(
        self, _: str, digest: str, *, offset: int, size: int, block: bytes
    ) -> UploadReply:
        assert digest.startswith("sha256:")
        assert size >= offset + len(block)
        if self.script:
            first = self.script.pop(0)
            if isinstance(first, Exception):
                raise first
            return first
        if offset == len(self.content):
            self.content += block
        return UploadReply(stored=len(self.content))


def turn(found: ArtifactUploader, api: FakeApi) -> bool:
    return found._turn(api)  # type: ignore[arg-type]  # the shipped fake


def written(run: WorkerRun) -> list[ArtifactLine]:
    text = Path(run.artifact_lines).read_bytes()
    return [parse_record(ArtifactLine, line) for line in text.splitlines()]
