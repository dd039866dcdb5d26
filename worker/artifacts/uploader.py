"""Sends the content of artifacts to the server; the reports then name these artifacts.

The uploader runs in its own thread, so that an upload delays neither the reports nor the lease.
Once the server has an artifact's content, the uploader appends a line to `artifacts.jsonl`; the
reports send these lines as they send metrics.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from trainyard.protocol.job_artifacts.messages import BLOCK_BYTES, UploadReply
from trainyard.protocol.rest.errors import ApiError
from trainyard.run.artifacts.artifact_records import (
    MAX_FILE_BYTES,
    OUTPUT,
    ArtifactLine,
    ArtifactRecord,
    DropReason,
)
from worker.api import BACKOFF, ServerAway, WorkerApi
from worker.artifacts.artifact_lines import COLLECTED, OUTPUT_LOST, ArtifactLines
from worker.artifacts.artifact_tail import ArtifactTail
from worker.artifacts.outputs import outputs_of
from worker.launchers.base import Share
from worker.node.node_store import NodeStore

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
MAX_OUTPUTS, OUTPUT_BYTES = 1000, 1024 * 1024 * 1024
"""Maximum number of files collected at the end of a share, and their maximum total size in bytes.
"""
UNKNOWN = 401
"""Status that may come from another program on the server's port while the server is down."""
MAX_REPEATS = 5
"""Maximum number of consecutive responses without progress; one more counts as unreachable."""
OVER = 409
"""Status by which the server refuses all further artifacts of this attempt."""
NO_ROUTE = frozenset({404, 405})
"""Statuses of a proxy that temporarily lacks the route, or of an older server."""


class RouteMissing(ServerAway):
    """The server has no route for artifacts; this may change while the attempt runs."""


class ArtifactUploader:
    """Uploads all artifacts of one share.

    The thread runs `upload_until_over`; the other methods are called from other threads.

    Args:
        share: one node's share of an attempt.
        give_up_at: returns the Unix time at which an ended share stops waiting for its uploads, or
            None if there is no deadline.
    """

    def __init__(self, share: Share, give_up_at: Callable[[], float | None] = lambda: None) -> None:
        self._share = share
        self._give_up_at = give_up_at
        self._processes = sorted(share.processes_of_program)
        self.lines = ArtifactLines(share.run.artifact_lines, share.run.artifact_state)
        """The file of artifact lines; the reports send the lines."""
        self._tail = ArtifactTail(share.run.artifacts, writer=share.run.writer)
        self._wake = threading.Event()
        self._ending = self._stopped = False
        self._collected = False
        self._done = threading.Event()
        if not self._processes:
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether the uploads are over: all done, stopped or refused, or past the deadline."""
        # An upload in progress may overrun the deadline.
        return self._done.is_set() or (self._ending and self._is_late)

    @property
    def _is_late(self) -> bool:
        until = self._give_up_at()
        return until is not None and time.time() >= until

    @property
    def _gives_up(self) -> bool:
        return self._stopped or (self._ending and self._is_late)

    def finish(self, *, wait_seconds: float = 0.5) -> None:
        """Let the thread upload the rest; called after all processes of the share have ended.

        Args:
            wait_seconds: time to wait, so that a short upload can finish.
        """
        self._ending = True
        self._wake.set()
        self._done.wait(wait_seconds)

    def stop(self) -> None:
        """Stop the thread because the server accepts no more artifacts."""
        self._stopped = True
        self._wake.set()

    def drop_waiting(self) -> bool:
        """On a full disk, remove content not yet uploaded; return whether there was any.

        The records of the removed content are dropped later, with a full disk as the reason.
        """
        names = self._tail.content_files() if self._processes else []
        if names:
            self.lines.note_made_room()
        for name in names:
            self._tail.remove(name)
        return bool(names)

    def note_lost_output(self, reason: DropReason) -> None:
        """Report to the server that output was dropped; each reason causes one event."""
        if OUTPUT_LOST + reason in self.lines.noted:
            return
        try:
            self.lines.append(ArtifactLine(process=COLLECTED, end=0, record=None, dropped=reason))
        except OSError as error:
            logger.warning("lost output is noted later: %s", error)

    def upload_until_over(self) -> None:
        """Upload until all of an ended share is sent, or a refusal, the deadline or `stop`."""
        if self.done:
            return
        try:
            self._upload()
        finally:
            self._done.set()  # otherwise the exit would wait for a dead thread

    def _upload(self) -> None:
        token = self._share.run.secret.read_text(encoding="ascii").strip()
        node = NodeStore(Path(self._share.launch.data_dir))
        waits = BACKOFF.pauses()
        with WorkerApi(node.server_url or "", token, ca_file=node.server_ca) as api:
            while not (self._gives_up or self.done):
                ending = self._ending  # read first: no artifact is added once the share has ended
                try:
                    more = self._turn(api)
                    waits, pause = BACKOFF.pauses(), 0.0 if more else PAUSE_SECONDS
                except ServerAway as error:
                    if ending and isinstance(error, RouteMissing):
                        logger.warning("the server takes no artifacts: %s", error)
                        break
                    logger.info("artifacts wait: %s", error)
                    api.url = node.server_url or api.url
                    more, pause = True, next(waits)
                except ApiError as refusal:
                    logger.warning("the server takes no artifacts: %s", refusal)
                    break
                except Exception:  # for example a full disk: reports must continue
                    logger.exception("artifacts wait")
                    more, pause = True, next(waits)
                if ending and not more:
                    break
                if pause:
                    self._wake.wait(pause)
                    self._wake.clear()

    def _turn(self, api: WorkerApi) -> bool:
        """Upload the artifacts of the next new records; return whether there were any.

        Once the processes have ended and no new record is left, also upload the program's output
        files.
        """
        more, ending = False, self._ending
        for process in self._processes:
            start = self.lines.offsets.get(process, 0)
            for end, record in self._tail.records(process, start):
                if self._gives_up:
                    return True
                more = True
                self._take(api, process, end=end, record=record)
        if ending and not more and not self._collected:
            self._collect(api)
            self._collected = True
        return more

    def _collect(self, api: WorkerApi) -> None:
        """Upload the files that match the spec, in the order of `outputs_of`.

        Raises:
            ServerAway, ApiError: from the server; a repeated call continues the upload.
            OSError: a line cannot be appended.
        """
        total = 0
        for count, (name, file) in enumerate(outputs_of(self._share)):
            size = 0 if file is None else os.fstat(file.fileno()).st_size
            if name in self.lines.collected:
                total += size
                continue
            digest, dropped = None, self._excess(count, total + size)
            if dropped is None:
                digest, size, dropped = self._send_open(api, name, file)
                total += size
            if dropped is None or dropped not in self.lines.noted:
                record = ArtifactRecord(time=time.time(), kind=OUTPUT, name=name)
                self.lines.append(
                    ArtifactLine(
                        process=COLLECTED,
                        end=0,
                        record=record,
                        digest=digest,
                        size=size,
                        dropped=dropped,
                    )
                )

    def _excess(self, count: int, total: int) -> DropReason | None:
        if count >= MAX_OUTPUTS or self.lines.is_full:
            return "too_many"
        return "too_large" if total > OUTPUT_BYTES else None

    def _take(
        self, api: WorkerApi, process: int, *, end: int, record: ArtifactRecord | None
    ) -> None:
        """Upload one artifact and append its line.

        Raises:
            ServerAway, ApiError: from the server.
            OSError: the line cannot be appended.
        """
        digest, size, dropped = None, 0, None if record is None else record.dropped
        if self.lines.is_full:
            dropped = "too_many"
        elif record is not None and record.file is not None and dropped is None:
            digest, size, dropped = self._send(api, record.file)
        if record is None or (dropped is not None and dropped in self.lines.noted):
            self.lines.skip(process, end)
        else:
            self.lines.append(
                ArtifactLine(
                    process=process,
                    end=end,
                    record=record,
                    digest=digest,
                    size=size,
                    dropped=dropped,
                )
            )
        if record is not None and record.file is not None:
            self._tail.remove(record.file)  # last: without a line, the content is sent again

    def _send(self, api: WorkerApi, name: str) -> tuple[str | None, int, DropReason | None]:
        """Upload a content file; return its digest and size, or why the file was dropped."""
        try:
            with self._tail.open(name) as file:
                return self._send_open(api, name, file)
        except FileNotFoundError:
            return None, 0, "disk_full" if self.lines.made_room else "unreadable"
        except OSError as error:
            logger.warning("artifact %s cannot be opened: %s", name, error)
            return None, 0, "unreadable"

    def _send_open(
        self, api: WorkerApi, name: str, file: BinaryIO | None
    ) -> tuple[str | None, int, DropReason | None]:
        """Upload an open file; return its digest and size, or why the file was dropped."""
        if file is None:
            return None, 0, "unreadable"
        attempt_id = self._share.launch.attempt_id
        try:
            return send_file(api, attempt_id, file, stopped=lambda: self._gives_up)
        except OSError as error:
            logger.warning("artifact %s cannot be read: %s", name, error)
            return None, 0, "unreadable"


def send_file(
    api: WorkerApi, attempt_id: str, file: BinaryIO, *, stopped: Callable[[], bool]
) -> tuple[str | None, int, DropReason | None]:
    """Upload an open file in blocks; return its digest and size, or why the file was dropped.

    Only the bytes present at the start of the call are uploaded, because a rank may append to the
    file.

    Args:
        api: the connection to the server.
        attempt_id: id of the attempt.
        file: the file to upload.
        stopped: returns whether to abandon the upload.

    Raises:
        ServerAway: the server does not respond, or the upload is abandoned.
        ApiError: the server accepts no artifacts of this attempt.
        OSError: the file cannot be read.
    """
    size = file.seek(0, 2)
    if size > MAX_FILE_BYTES:
        return None, 0, "too_large"
    file.seek(0)
    sha256, left = hashlib.sha256(), size
    while part := file.read(min(BLOCK_BYTES, left)):
        sha256.update(part)
        left -= len(part)
    if left:  # the file was truncated meanwhile
        return None, 0, "unreadable"
    digest = f"sha256:{sha256.hexdigest()}"
    stored, repeats = 0, 0
    while True:
        if stopped():
            raise ServerAway("the share is over, or its time has passed")
        file.seek(stored)
        block = file.read(min(BLOCK_BYTES, size - stored))
        reply = _send_block(api, attempt_id, digest, offset=stored, size=size, block=block)
        if reply.refused is not None:
            return None, 0, reply.refused
        if reply.stored >= size:
            return digest, size, None
        repeats = repeats + 1 if reply.stored <= stored else 0
        if repeats > MAX_REPEATS:
            raise ServerAway(f"{digest}: the server stays at byte {stored}")
        stored = reply.stored


def _send_block(
    api: WorkerApi, attempt_id: str, digest: str, *, offset: int, size: int, block: bytes
) -> UploadReply:
    """Upload a block; return a reply even if the server refuses this content.

    Raises:
        ServerAway: the server does not respond, or responds without the route or with `UNKNOWN`.
        ApiError: the server accepts no artifacts of this attempt.
    """
    try:
        return api.upload_artifact(attempt_id, digest, offset=offset, size=size, block=block)
    except ApiError as refusal:
        if refusal.status == OVER:
            raise
        if refusal.status in NO_ROUTE:
            raise RouteMissing(str(refusal)) from refusal
        if refusal.status == UNKNOWN:
            raise ServerAway(str(refusal)) from refusal
        logger.warning("an artifact is dropped: %s", refusal)
        return UploadReply(stored=0, refused="unreadable")
