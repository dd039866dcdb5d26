"""One call to an engine on behalf of the server: claim, call, report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from provisioner.api import ProvisionerApi, persevere
from provisioner.base import LoginNeeded, NodeSource, Shape, SourceError, Submission, printable
from provisioner.request_folders import Busy, RequestFolders, hashes
from provisioner.settings import SourceConfig
from trainyard.protocol.node_sources.messages import (
    MAX_CANCELS,
    MAX_JOBS,
    EngineJob,
    NeedsLogin,
    RequestClaim,
    RequestOrder,
    SourceMessage,
    SourceReport,
    SourceReportReply,
)
from trainyard.protocol.rest.errors import ApiError, ConnectionFailedError
from trainyard.protocol.worker_messages import PROTOCOL

logger = logging.getLogger(__name__)

SERVER_SECONDS = 30.0
"""Maximum time, in seconds, for which a call waits for the server. If the job of a call stays
unreported, the next listing, within a minute, reports the job.
"""
REFUSED_CLAIM = frozenset({409, 422})
"""HTTP statuses of a refused claim after which the cause, such as lost secrets, is reported for the
request. After the status 404 there is no report, because the server does not know the request.
"""
PART_BYTES = 512 * 1024
"""Maximum size of one part of a report, in bytes: half of the body that the server accepts by
default.
"""
CANCELS_AT_ONCE = 100
"""Maximum number of jobs that one listing cancels; the next listing cancels further jobs."""


@dataclass(frozen=True)
class Learned:
    """The result of a call to an engine."""

    jobs: Sequence[EngineJob] = ()
    complete: bool = False
    explanation: str | None = None
    login: LoginNeeded | None = None


class EngineCalls:
    """The calls for one source."""

    def __init__(
        self,
        config: SourceConfig,
        engine: NodeSource,
        *,
        folders: RequestFolders,
        api: ProvisionerApi,
        url: str,
    ) -> None:
        """Prepare calls to an engine for a source.

        Args:
            config: configuration of the source.
            engine: engine of the source.
            folders: folders of the source's requests.
            api: connection to the server that uses the source's token.
            url: URL at which the provisioner reaches the server, for pilots without another URL.
        """
        self._config = config
        self._engine = engine
        self._folders = folders
        self._api = api
        self._url = url

    def carry_out(self, message: SourceMessage) -> None:
        """Call the engine and report the result; log errors of engine and server.

        A call may be made several times, because the server repeats a message whose call was lost.
        """
        try:
            try:
                if message.request_id is None:
                    self._list()
                elif message.call != "cancel" or self._is_withdrawn(message.request_id):
                    self._call(message.call, message.request_id)
            except OSError as error:  # such as a full disk, which prevents the lock
                logger.exception("%r failed", message)
                failed = SourceError(f"the provisioner's folder: {error}")
                self._send(Learned(), failed, request_id=message.request_id)
        except Busy as busy:
            logger.info("%r is left to the call that runs: %s", message, busy)
        except (ApiError, ConnectionFailedError) as error:
            logger.warning("%r: the server: %s", message, error)

    def _is_withdrawn(self, request_id: str) -> bool:
        """Return whether the server confirms that it has withdrawn a request.

        A message without this confirmation cancels no job. The check is a claim without secrets,
        which changes nothing. The server refuses this claim unless the request is withdrawn.
        """
        claim = RequestClaim(protocol=PROTOCOL, source=self._config.name, secret_hashes=())
        try:
            order = persevere(
                lambda: self._api.claim(request_id, claim), for_seconds=SERVER_SECONDS
            )
        except ApiError as refusal:
            if refusal.status not in REFUSED_CLAIM:
                raise
            logger.warning("request %s is wanted, and not cancelled: %s", request_id, refusal)
            return False
        return not order.wanted

    def _list(self) -> None:
        """Report every job of the source; cancel the jobs that the reply names.

        A job that was not submitted from this folder may belong to another server, even if its name
        is the name of a request of this source. The reply does not cancel such a job; only a
        separate message of the server cancels it.
        """

        def listed() -> Learned:
            found = self._engine.list()
            self._folders.sweep({job.request_id for job in found.jobs})
            return Learned(found.jobs, complete=True, login=found.login)

        reply = self._report(listed, request_id=None)
        foreign = [each for each in reply.cancel if not self._folders.has(each)]
        if foreign:
            logger.warning("not submitted from here, and not cancelled: %s", ", ".join(foreign))
        for request_id in [each for each in reply.cancel if each not in foreign][:CANCELS_AT_ONCE]:
            try:
                self._call("cancel", request_id)
            except Busy as busy:
                logger.info("not cancelled in this listing: %s", busy)

    def _call(self, call: str, request_id: str) -> None:
        """Make a call for one request, and report the result.

        Calls for one request exclude each other; the server repeats a skipped call.

        Raises:
            Busy: another call for the same request runs.
        """
        calls: dict[str, Callable[[], Learned]] = {
            "submit": lambda: self._submit(request_id),
            "cancel": lambda: self._cancel(request_id),
            "status": lambda: Learned(self._status(request_id)),
            "explain": lambda: Learned(explanation=self._engine.explain(request_id)[:2000]),
        }
        with self._folders.locked(request_id):
            self._report(calls[call], request_id=request_id)

    def _submit(self, request_id: str) -> Learned:
        order, submission = self._claim(request_id)
        if not order.wanted:
            return self._cancel(request_id)
        self._folders.note_submission(request_id)
        ref = self._engine.submit(submission)
        try:
            jobs = [job for job in self._engine.status([request_id]) if job.ref == ref]
        except SourceError as error:
            logger.warning("request %s is %s; its state is unknown: %s", request_id, ref, error)
            jobs = []
        return Learned(jobs or [EngineJob(request_id=request_id, ref=ref, state="unknown")])

    def _claim(self, request_id: str) -> tuple[RequestOrder, Submission]:
        config = self._config
        path = self._folders.secrets(request_id, count=config.limits.nodes_per_request)
        claim = RequestClaim(protocol=PROTOCOL, source=config.name, secret_hashes=hashes(path))
        order = persevere(lambda: self._api.claim(request_id, claim), for_seconds=SERVER_SECONDS)
        urls = (config.url, *order.urls, self._url)
        submission = Submission(
            request_id=request_id,
            purpose=order.purpose,
            shape=Shape(nodes=order.nodes, slots=config.slots, device=config.device),
            seconds=order.seconds,
            secrets=path,
            environment=config.pilot_environment(
                url=next(url for url in urls if url),
                request_id=request_id,
                purpose=order.purpose,
            ),
        )
        return order, submission

    def _cancel(self, request_id: str) -> Learned:
        if not self._folders.was_never_submitted(request_id):
            self._engine.cancel(request_id)
        return Learned(self._status(request_id))

    def _status(self, request_id: str) -> Sequence[EngineJob]:
        """Return the job for a request; without a job, return the proof of its absence, if known.

        If a request was claimed but not submitted here, the engine was never called, so no job
        exists. Any other request without a job stays unknown.
        """
        if self._folders.was_never_submitted(request_id):
            reason = "withdrawn before it was submitted"
            return [
                EngineJob(
                    request_id=request_id, ref="none", state="ended", gone=True, reason=reason
                )
            ]
        return self._engine.status([request_id])

    def _report(self, call: Callable[[], Learned], *, request_id: str | None) -> SourceReportReply:
        """Make a call; report its result or its failure.

        Raises:
            ApiError: the server refuses the report, or does not know the request.
            ConnectionFailedError: the server does not respond.
        """
        error: SourceError | None = None
        learned = Learned()
        try:
            learned = call()
        except SourceError as raised:
            error = raised
        except ApiError as refusal:
            if refusal.status not in REFUSED_CLAIM:
                raise
            error = SourceError(f"the server refuses the claim: {refusal}")
        except ConnectionFailedError:
            raise
        except Exception as raised:
            logger.exception("a call of source %s failed", self._config.name)
            error = SourceError(f"{type(raised).__name__}: {raised}")
        return self._send(learned, error, request_id=request_id)

    def _send(
        self, learned: Learned, error: SourceError | None, *, request_id: str | None
    ) -> SourceReportReply:
        """Send a report in as many parts as the server's size limit requires."""
        *first, last = _parts(tuple(_printable(learned.jobs)))
        earlier: list[str] = []
        cancel: dict[str, None] = {}
        for jobs in first:
            part = SourceReport(protocol=PROTOCOL, source=self._config.name, jobs=tuple(jobs))
            cancel |= dict.fromkeys(self._post(part).cancel)
            earlier += [job.request_id for job in jobs]
        report = SourceReport(
            protocol=PROTOCOL,
            source=self._config.name,
            jobs=tuple(last),
            earlier=tuple(earlier[:MAX_JOBS]),
            complete=learned.complete and len(earlier) <= MAX_JOBS,
            asked=request_id,
            explanation=None if learned.explanation is None else clean(learned.explanation),
            error=None if error is None else clean(str(error)),
            refused=error is not None and error.refused,
            needs_login=_login(error if learned.login is None else learned.login),
        )
        cancel |= dict.fromkeys(self._post(report).cancel)
        return SourceReportReply(cancel=tuple(cancel)[:MAX_CANCELS])

    def _post(self, report: SourceReport) -> SourceReportReply:
        return persevere(lambda: self._api.report(report), for_seconds=SERVER_SECONDS)


def _parts(jobs: Sequence[EngineJob]) -> Sequence[Sequence[EngineJob]]:
    """Split jobs into parts of at most `PART_BYTES`; a larger job is a part of its own."""
    parts: list[list[EngineJob]] = [[]]
    size = 0
    for job in jobs:
        own = len(job.model_dump_json().encode())
        if parts[-1] and size + own > PART_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(job)
        size += own
    return parts


def _login(error: SourceError | None) -> NeedsLogin | None:
    if not isinstance(error, LoginNeeded):
        return None
    return NeedsLogin(reason=clean(str(error)), command=clean(error.command, longest=500))


def _printable(jobs: Iterable[EngineJob]) -> Iterable[EngineJob]:
    for job in jobs:
        yield job.model_copy(update={"reason": clean(job.reason)})


def clean(text: str, *, longest: int = 2000) -> str:
    """Return an engine's text, limited in length, without control characters other than tabs and
    line breaks."""
    shown = printable(text.strip())
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."
