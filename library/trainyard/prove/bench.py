"""The control plane under test, as the checks of `trainyard prove` use it."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from trainyard.client.errors import (
    ConflictError,
    ConnectionFailedError,
    InvalidRequestError,
    ServerError,
)
from trainyard.client.sdk import Client
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.states import TERMINAL_JOB_STATES, JobState
from trainyard.prove.course import Course, course
from trainyard.spec.auto import DeviceKind

POLL_SECONDS = 0.25
PICTURES = "pictures"
"""Folder of the pictures in the folder of a proof."""
MAX_REFERENCES = 20
"""Maximum number of tries of a reference job."""

Document = Mapping[str, Any]


class CheckError(Exception):
    """A check could not be completed; the text has the reason."""


class NotPossibleError(Exception):
    """A check does not apply to this machine or number of slots; the text has the reason."""


class NotRunError(Exception):
    """A check got no slots in time, so it shows nothing; the text has the reason."""


@dataclass(frozen=True)
class BenchKeys:
    """Prefixes of the idempotency keys of a check's jobs."""

    own: str
    """Prefix of the check and its try."""
    reference: str
    """Prefix of the reference jobs, which the checks of a run share."""


class Bench:
    """Submits the jobs of one check, and reads their results.

    Every submission has an idempotency key of the run, the check and its try. A check that is
    repeated after a crash of `prove` therefore finds its jobs instead of submitting them again.

    Args:
        yard: connection to the control plane.
        slots: number of slots under test.
        device: kind of the slots.
        keys: prefixes of the idempotency keys.
        folder: folder of the proof, for the submitted specs and for pictures.
        deadline: time of `time.monotonic` at which the check ends.
    """

    def __init__(
        self,
        yard: Client,
        *,
        slots: int,
        device: DeviceKind,
        keys: BenchKeys,
        folder: Path,
        deadline: float,
    ) -> None:
        self.yard = yard
        self.slots = slots
        self.device = device
        self.keys = keys
        self.jobs: list[str] = []
        """Ids of the jobs so far, in the order of their submissions."""
        self.commands: list[str] = []
        """Commands that repeat the check by hand."""
        self.findings: list[str] = []
        """Sentences that name faulty nodes, ranks or links."""
        self._folder = folder
        self._deadline = deadline

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(0.0, self._deadline - time.monotonic())

    def fits(self, document: Document) -> bool:
        """Return whether a job is legal and fits into the memory of the slots, or may fit."""
        try:
            return self.yard.plan(document).fits is not False
        except InvalidRequestError:
            return False

    def require(self, document: Document) -> None:
        """Check a job before the check submits any other.

        Raises:
            NotPossibleError: the planner refuses the spec, or it does not fit into memory.
        """
        try:
            planned = self.yard.plan(document)
        except InvalidRequestError as error:
            raise NotPossibleError(_refusal(error)) from error
        if planned.fits is False:
            raise NotPossibleError("; ".join(warning.detail for warning in planned.warnings))

    def submit(self, document: Document) -> JobView:
        """Submit a job, or return the job of an earlier run of this check.

        Raises:
            NotPossibleError: the planner refuses the spec, or it does not fit into memory.
        """
        return self._submit(document, self.keys.own)

    def finish(self, document: Document) -> JobView:
        """Submit a job and return it once it has succeeded.

        Raises:
            NotPossibleError: as for `submit`.
            CheckError: the job did not succeed before the deadline; it is cancelled.
            NotRunError: the job was not placed before the deadline; it is cancelled.
        """
        return self.succeeded(self.watch(self.submit(document).id, _has_ended))

    def reference(self, document: Document) -> JobView:
        """Return the succeeded reference job of the run; the first call submits it.

        A reference that failed in an earlier check is tried again. It is not cancelled at the
        deadline, because later checks wait for it.

        Raises:
            NotPossibleError: as for `submit`.
            CheckError: the job did not succeed before the deadline.
            NotRunError: the job was not placed before the deadline.
        """
        for number in range(MAX_REFERENCES):
            job = self._submit(document, f"{self.keys.reference}-{number}")
            if job.state is JobState.SUCCEEDED or not _has_ended(job):
                break
        return self.succeeded(self.watch(job.id, _has_ended, cancels=False))

    def watch(
        self, job_id: str, reached: Callable[[JobView], bool], *, cancels: bool = True
    ) -> JobView:
        """Return a job once a condition holds; a server that is away for a while does no harm.

        At the deadline the job is cancelled if `cancels`.

        Raises:
            CheckError: the deadline has passed.
            NotRunError: the deadline has passed, and the job still waits for slots.
            ConnectionFailedError: the server was away at the deadline.
        """
        while True:
            try:
                job = self.yard.job(job_id)
                if reached(job):
                    return job
            except (ConnectionFailedError, ServerError):
                if not self.seconds_left:
                    raise
            else:
                if not self.seconds_left:
                    if cancels:
                        self._cancel(job_id)
                    kind = NotRunError if job.state is JobState.QUEUED else CheckError
                    raise kind(f"the time of the check is over: {described(job)}")
            time.sleep(POLL_SECONDS)

    def succeeded(self, job: JobView) -> JobView:
        """Return the job.

        Raises:
            CheckError: the job ended in another state.
        """
        if job.state is not JobState.SUCCEEDED:
            raise CheckError(described(job))
        return job

    def course(self, job_id: str, *names: str) -> Course:
        """Return the digests and some metrics along the lineage of a job."""
        return course(self.yard, job_id, *names)

    def draw(self, name: str, picture: str) -> None:
        """Keep an SVG for the report, under the name of a check with `-` in place of `/`."""
        self._write(PICTURES, f"{name}.svg", picture)

    def _cancel(self, job_id: str) -> None:
        with suppress(ConflictError):  # the job has just ended
            self.yard.cancel(job_id, reason="the check of `trainyard prove` ran out of time")

    def _submit(self, document: Document, key: str) -> JobView:
        name = str(document["name"])
        text = json.dumps(document, indent=2)
        path = self._write("specs", f"{name}.json", text + "\n")
        self.require(document)
        # A changed document is another job.
        digest = sha256(text.encode()).hexdigest()[:12]
        job = self.yard.submit(document, idempotency_key=f"{key}-{name}-{digest}")
        if job.id not in self.jobs:
            self.jobs.append(job.id)
            self.commands.append(f"trainyard submit {shlex.quote(str(path))}")
        return job

    def _write(self, folder: str, name: str, text: str) -> Path:
        path = self._folder / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


def _has_ended(job: JobView) -> bool:
    return job.state in TERMINAL_JOB_STATES and job.pending is None


def _refusal(error: InvalidRequestError) -> str:
    """Return what is wrong, without the title that every invalid request has."""
    problem = error.problem
    return "; ".join(each.detail for each in problem.errors) or problem.detail


def described(job: JobView) -> str:
    """Return name, state and reason of a job, with the failure of its newest attempt."""
    attempt = job.current_attempt
    failure = None if attempt is None else attempt.failure
    reason = job.reason if failure is None else f"{failure.reason}: {failure.message}"
    text = f"job {job.name} ({job.id}) is {job.state} at step {job.progress.step}"
    return f"{text}: {reason}" if reason else text
