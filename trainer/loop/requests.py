"""Requests to a running trainer; all ranks act on them after the same step.

Only global rank 0 reads `stop` and `requests/*.json`, between two steps. It broadcasts its decision
while the next step runs, and all ranks act on the decision at the end of that step. So no rank
waits for the broadcast, and slow ranks act after the same step as others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntFlag
from pathlib import Path

import torch
import torch.distributed as dist
from pydantic import ValidationError

from trainer.metrics.profiler import ProfileRequest
from trainer.metrics.run_writer import RunWriter
from trainyard.base.problems import spec_error
from trainyard.protocol.record_parser import parse_record
from trainyard.run.control_files import request_files, should_stop
from trainyard.run.directory import RunDirectory
from trainyard.run.records import Request, RequestAnswer


class Decision(IntFlag):
    """Actions of all ranks at the end of a step."""

    GO_ON = 0
    STOP = 1
    SAVE_ASKED = 2
    SAVE_DUE = 4
    SAVE_ENDED = 8
    SAVE_RETRY = 16


class RequestChannel:
    """Requests in the run directory; every rank calls `post` before a step and `take` after it."""

    def __init__(
        self,
        directory: RunDirectory,
        writer: RunWriter,
        *,
        group: dist.ProcessGroup,
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._group = group
        self._leads = dist.get_rank(group) == 0
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._saved_at = clock()
        self._seen: set[str] = set()
        self._save_requests: list[str] = []
        self._answered_by_save: list[str] = []
        self._recordings: list[tuple[str, Request]] = []  # a queue; its head is active once posted
        self._recording_posted = False
        self.profile: ProfileRequest | None = None
        """Recording requested in the last decision taken, or None; the recording starts with the
        next step.
        """
        # The decision with steps, kind and ranks of a recording; then the handle of its broadcast.
        self._posted: tuple[torch.Tensor, dist.Work] | None = None

    def post(self, *, save_ended: bool = False, retry_due: bool = False) -> None:
        """Read the requests on rank 0, and start the broadcast that `take` receives.

        Args:
            save_ended: whether a background save has ended on this rank; only rank 0's value
                counts.
            retry_due: whether the retry of a failed save is due; only rank 0's value counts.
        """
        assert self._posted is None
        payload_4 = torch.zeros(4, dtype=torch.int64)
        if self._leads:
            payload_4[:] = torch.tensor(self._payload(save_ended=save_ended, retry_due=retry_due))
        work = dist.broadcast(payload_4, src=0, group=self._group, async_op=True)
        assert work is not None
        self._posted = payload_4, work

    def take(self) -> Decision:
        """Return the decision posted before the step that just ended; equal on all ranks."""
        assert self._posted is not None
        payload_4, work = self._posted
        self._posted = None
        work.wait()
        flags, steps, memory, every_rank = payload_4.tolist()
        self.profile = ProfileRequest(bool(memory), steps, bool(every_rank)) if steps else None
        return Decision(flags)

    def save_begun(self) -> None:
        """Assign the pending save requests to the save that now starts; restart the interval."""
        self._saved_at = self._clock()
        self._answered_by_save += self._save_requests
        self._save_requests.clear()

    def saved(self, checkpoint_id: str) -> None:
        """Answer the save requests whose save is committed."""
        for request_id in self._answered_by_save:
            self._answer(request_id, ok=True, message=f"saved as {checkpoint_id}")
        self._answered_by_save.clear()

    def recorded(self, result: tuple[bool, str] | None) -> None:
        """If a recording has ended, answer its request; another recording may then start."""
        if result is not None and self._leads:
            request_id, _ = self._recordings.pop(0)
            self._recording_posted = False
            self._answer(request_id, ok=result[0], message=result[1])

    def close(self, checkpoint_id: str) -> None:
        """Answer the open requests when the run ends with its last checkpoint."""
        if self._leads:
            self._poll()
            self.save_begun()
            self.saved(checkpoint_id)
            while self._recordings:
                self.recorded((False, "training ended before the first step to record"))

    def _payload(self, *, save_ended: bool, retry_due: bool) -> list[int]:
        decision, recording = self._poll(), [0, 0, 0]
        if save_ended:
            decision |= Decision.SAVE_ENDED
        if retry_due:
            decision |= Decision.SAVE_RETRY
        if self._recordings and not self._recording_posted:
            self._recording_posted = True
            _, request = self._recordings[0]
            memory, every_rank = request.kind == "memory_snapshot", request.ranks == "all"
            recording = [request.steps, int(memory), int(every_rank)]
        return [int(decision), *recording]

    def _poll(self) -> Decision:
        decision = Decision.STOP if should_stop(self._directory) else Decision.GO_ON
        for request_id, path in request_files(self._directory):
            if request_id not in self._seen:
                self._seen.add(request_id)
                self._read(request_id, path)
        if self._save_requests:
            decision |= Decision.SAVE_ASKED
        if 0 < self._interval_seconds <= self._clock() - self._saved_at:
            decision |= Decision.SAVE_DUE
        return decision

    def _read(self, request_id: str, path: Path) -> None:
        text = b""
        try:
            text = path.read_bytes()
            request = parse_record(Request, text)
        except (OSError, ValidationError) as error:
            why = spec_error(error, text) if isinstance(error, ValidationError) else error
            self._answer(request_id, ok=False, message=f"no request that can be read: {why}")
            return
        if request.kind == "save":
            self._save_requests.append(request_id)
        else:
            self._recordings.append((request_id, request))

    def _answer(self, request_id: str, *, ok: bool, message: str) -> None:
        answer = RequestAnswer(ok=ok, message=message, step=self._writer.step)
        self._writer.answer(request_id, answer)
