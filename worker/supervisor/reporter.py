"""Reports an attempt through outages of any length, until the server has its exit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from trainyard.base.redaction import NO_MASK, OutputMask
from trainyard.protocol.rest.errors import ApiError
from trainyard.protocol.worker_messages import PROTOCOL, Identity, Report, ReportReply
from trainyard.run.control_files import answer_files
from trainyard.run.fact_types.fact_records import MAX_FACTS_BYTES, RunFacts
from trainyard.run.record_base import to_plain
from trainyard.run.records import ExitRecord, Heartbeat, Provenance, RequestAnswer
from worker.api import BACKOFF, ServerAway, WorkerApi
from worker.masking import masked_value
from worker.node.files import read_record
from worker.node.node_store import LaunchRecord, NodeStore, WorkerRun
from worker.supervisor.exit_classification import Findings, record_exit
from worker.supervisor.orders import Orders
from worker.supervisor.spool import Spool

logger = logging.getLogger(__name__)

NOT_CURRENT, UNKNOWN = 409, 401
UNKNOWN_SECONDS = 600.0
"""Time, in seconds, for which the server must deny the existence of the attempt before the reporter
ends. The time is long, because another program may respond on the server's port while the server is
down.
"""
MAX_ANSWERS = 1000
"""Maximum number of request answers per report; later reports have the remaining answers."""
FACTS_SECONDS = 10.0
"""Minimum time, in seconds, between two reports of a run's facts; the last report does not wait."""
DRAIN_SECONDS = 600.0
"""Maximum delay, in seconds, of the exit's report while the server accepts unsent files. The server
accepts output for the same time after the end of an attempt. Without this limit, a rank could delay
the report by a sparse log of any size.
"""


class Reporter:
    """Reports an attempt from its own thread until the server has the exit of the attempt.

    The thread runs `report_until_over`; other threads call the other methods.
    """

    def __init__(
        self,
        run: WorkerRun,
        launch: LaunchRecord,
        *,
        identity: Identity,
        orders: Orders,
        spool: Spool,
        mask: OutputMask = NO_MASK,
        rank_pids: Callable[[], dict[int, int]] = dict,
        sign_of_life: Callable[[], Heartbeat | None] = lambda: None,
    ) -> None:
        self._run = run
        self._launch = launch
        self._identity = identity
        self._orders = orders
        self._spool = spool
        self._mask = mask
        self._rank_pids = rank_pids
        self._sign_of_life = sign_of_life
        self._exit: ExitRecord | None = None
        self._unusable: Mapping[str, str] = {}
        self._nudge = threading.Event()
        self._pending: set[str] = set()
        self._answered: set[str] = set()
        self._provenance_over = False  # sent, or refused
        self._facts_file: tuple[int, ...] | None = None  # state of the file as last read
        self._facts_sent: tuple[int, ...] | None = None  # state of the file as last sent
        self._facts_at = float("-inf")  # monotonic time
        self._facts_over = False  # refused
        self._refused = False
        self._stuck = False
        self._unknown_since: float | None = None  # monotonic time
        self._draining_since: float | None = None  # monotonic time
        self.delivered = False
        """Whether the server has the exit record."""

    def withhold(self, unusable: Mapping[str, str]) -> None:
        """Add unusable devices to all further reports; `unusable` maps each UUID to the reason."""
        self._unusable = unusable

    def finish(self, findings: Findings) -> ExitRecord:
        """Record the exit after all processes of the attempt have ended; report unsent data, then
        the exit.
        """
        if self._launch.user is not None:
            try:
                self._launch.user.close(self._run.root)
            except OSError:
                logger.exception("%s stays open to the user of its ranks", self._run.root)
        self._spool.finish()
        record = self._exit = record_exit(self._run, findings, mask=self._mask)
        self._nudge.set()
        return record

    def report_until_over(self) -> None:
        """Report until the server has the exit record, or refuses further reports."""
        token = self._run.secret.read_text(encoding="ascii").strip()
        node = NodeStore(Path(self._launch.data_dir))
        with WorkerApi(node.server_url or "", token, ca_file=node.server_ca) as api:
            waits = BACKOFF.pauses()
            while not (self.delivered or self._orders.outrun):
                try:
                    pause = 0.0 if self._report(api) else self._launch.report_seconds
                    waits = BACKOFF.pauses()
                except ServerAway as error:
                    pause = self._note_outage(api, error, waits)
                except Exception:  # for example a full disk: the lease must still be renewed
                    logger.exception("a report could not be made")
                    pause = next(waits)
                if not self.delivered and not self._orders.outrun:
                    self._nudge.wait(pause)
                    self._nudge.clear()

    def _note_outage(self, api: WorkerApi, error: ServerAway, waits: Iterator[float]) -> float:
        """Read the server's URL again, which may have changed; return the pause before the next
        report."""
        logger.info("spooling: %s", error)
        api.url = NodeStore(Path(self._launch.data_dir)).server_url or api.url
        return next(waits)

    def _report(self, api: WorkerApi) -> bool:
        """Send one report; return whether another must follow at once."""
        report = self._make()
        try:
            reply = api.report(self._launch.attempt_id, report)
        except ApiError as refusal:
            if self._is_outrun(refusal):
                logger.warning("the server refuses reports of this attempt: %s", refusal)
                self._orders.give_way()
                return False
            if refusal.status != UNKNOWN:
                self._send_less(report, refusal)
            raise ServerAway(f"{refusal.status}: {refusal}") from refusal
        except ServerAway:
            self._unknown_since = self._draining_since = None
            raise
        if self._exit is not None and self._draining_since is None:
            self._draining_since = time.monotonic()
        is_alone = report.provenance is not None or report.facts is not None
        progress = self._take(report, reply) or is_alone
        self.delivered = report.exit is not None
        if report.exit is None and self._exit is not None and self._spool.drained:
            return True
        return progress and not self._spool.drained

    def _is_outrun(self, refusal: ApiError) -> bool:
        """Return whether a refusal shows that the server counts this attempt as ended."""
        if refusal.status != UNKNOWN:
            self._unknown_since = None
            return refusal.status == NOT_CURRENT
        now = time.monotonic()
        if self._unknown_since is None:
            self._unknown_since = now
        return now - self._unknown_since >= UNKNOWN_SECONDS

    def _send_less(self, report: Report, refusal: ApiError) -> None:
        """Omit the part of a report that the server may have refused.

        The next report omits all chunks, so that it renews the lease. The following reports send
        shorter chunks, until the invalid line is a chunk of its own. If the server refuses even
        that chunk, the exit is still sent.
        """
        logger.error("the server refused a report: %s", refusal)
        if report.provenance is not None:
            self._provenance_over = True  # the file never changes: later reports would fail
        self._facts_over |= report.facts is not None
        if report.chunks:
            self._stuck = not self._spool.narrow()
        self._refused = not self._refused

    def _make(self) -> Report:
        over = self._exit  # read first, so that a later drain is complete
        self._spool.make_room()  # needed even if no report arrives or has chunks
        provenance = self._provenance()
        facts = None if provenance is not None else self._facts(is_last=over is not None)
        # Sent without chunks, because the report may be too large with chunks. A refusal then also
        # identifies the invalid part.
        alone = provenance is not None or facts is not None
        chunks = () if self._refused or alone else self._spool.chunks()
        drained = not chunks and self._spool.drained
        return Report(
            protocol=PROTOCOL,
            node=self._launch.node,
            identity=self._identity,
            heartbeat=read_record(self._run.heartbeat, Heartbeat, owner=self._run.writer)
            or self._sign_of_life(),
            rank_pids=self._rank_pids(),
            provenance=provenance,
            facts=facts,
            chunks=chunks,
            answers={} if self._refused else self._answers(),
            unusable=dict(self._unusable),
            exit=over if drained or self._is_late or (self._refused and self._stuck) else None,
        )

    @property
    def _is_late(self) -> bool:
        """Whether the exit must no longer wait for unsent files."""
        since = self._draining_since
        return since is not None and time.monotonic() - since > DRAIN_SECONDS

    def _take(self, report: Report, reply: ReportReply) -> bool:
        """Apply a reply; return whether the server has more bytes than before."""
        self._refused = False
        self._unknown_since = None
        if report.chunks:
            self._stuck = False
            self._spool.widen()
        self._provenance_over |= report.provenance is not None
        if report.facts is not None:
            self._facts_sent = self._facts_file
        self._pending = {pending.id for pending in reply.requests}
        self._answered = (self._answered | set(report.answers)) - self._pending
        try:
            self._orders.obey(reply)
        except OSError:
            logger.exception("an order could not be written; the server repeats it")
        return self._spool.acknowledge(reply.acknowledged)

    def _provenance(self) -> dict[str, object] | None:
        if self._refused or self._provenance_over or self._launch.node_rank != 0:
            return None
        path = self._run.provenance
        found = read_record(path, Provenance, owner=self._run.writer)
        return None if found is None else masked_value(to_plain(found), self._mask)

    def _facts(self, *, is_last: bool) -> RunFacts | None:
        """Return the facts of the run if they have changed and a report is due; otherwise None."""
        waits = time.monotonic() - self._facts_at < FACTS_SECONDS and not is_last
        if self._refused or self._facts_over or waits or self._launch.node_rank != 0:
            return None
        try:
            found = self._run.facts.lstat()
        except OSError:
            return None
        file = (found.st_ino, found.st_mtime_ns, found.st_size)
        if file == self._facts_sent:
            return None
        self._facts_file, self._facts_at = file, time.monotonic()
        facts = None
        if found.st_size <= 12 * MAX_FACTS_BYTES:  # two sections; an escaped byte takes six bytes
            facts = read_record(self._run.facts, RunFacts, owner=self._run.writer)
            facts = masked_value(facts, self._mask)
        if facts is None:
            logger.warning("%s is not reported: no facts within their limits", self._run.facts)
            self._facts_sent = file
        return facts

    def _answers(self) -> dict[str, RequestAnswer]:
        """Return request answers that the server lacks, as many as one report can hold."""
        answers: dict[str, RequestAnswer] = {}
        unsent = (each for each in answer_files(self._run) if each[0] not in self._answered)
        for request_id, path in islice(unsent, MAX_ANSWERS):
            answer = read_record(path, RequestAnswer, owner=self._run.writer)
            if answer is not None:
                answers[request_id] = replace(answer, message=self._mask.text(answer.message))
        return answers
