"""Attempts on simulated nodes: claimed, trained, saved on order, ended; work is counted once."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from sqlalchemy import Row, select

from benchmarks.simulator.cluster import report as store_progress
from benchmarks.supply.events import Timeline
from benchmarks.supply.mix import STEPS, MixedJob
from benchmarks.supply.nodes import Pilots
from server.api.auth.tokens import hash_token
from server.core.context import Context
from server.core.database.slot_tables import HOLDS_SLOTS
from server.core.database.tables import attempt_nodes, attempts
from server.core.errors import ConflictError, UnauthenticatedError
from server.jobs.attempts.claim import claim_all
from server.jobs.attempts.reports import authenticate_share
from server.telemetry.ingest.receive import store_report
from trainyard.protocol.record_parser import check_record
from trainyard.protocol.states import AttemptNodeState, AttemptState, DesiredState
from trainyard.protocol.worker_messages import PROTOCOL, Claim, ClaimReply, Identity, Report
from trainyard.run.directory import Phase
from trainyard.run.records import ExitRecord, Heartbeat

START_SECONDS = (15.0, 45.0)
"""Time from the last claim to the first step."""
SAVE_SECONDS = (5.0, 25.0)
CHECKPOINT_EVERY = 600.0
"""Time between two checkpoints: a lost node costs the work since the last one."""

Outcome = Literal["succeeded", "stopped", "cancelled"]
HeldShare = Row[*tuple[object, ...]]


@dataclass
class Work:
    """A job, and its remaining work."""

    job: MixedJob
    job_id: str
    left: float
    """Slot-seconds."""
    succeeded: int = 0


@dataclass
class _Run:
    """An attempt."""

    work: Work
    attempt_id: str
    slots: int
    tokens: dict[str, str] = field(default_factory=dict)
    """Tokens of the claimed shares, by node."""
    nodes: set[str] = field(default_factory=set)
    is_placed_whole: bool = False
    trained_since: float | None = None
    lost_at: float | None = None
    """When the first of its nodes was lost."""
    is_leaving: bool = False
    is_counted: bool = False


class Training:
    """Everything that runs on the nodes."""

    def __init__(
        self,
        context: Context,
        timeline: Timeline,
        *,
        pilots: Pilots,
        works: Mapping[str, Work],
        chance: random.Random,
    ) -> None:
        """Take the jobs by id; more may be added later."""
        self._context = context
        self._timeline = timeline
        self._pilots = pilots
        self._works = works
        self._chance = chance
        self._runs: dict[str, _Run] = {}
        self.held: dict[str, int] = {}
        """Held slots of each node at the last poll."""
        self.attempts = 0
        self.doubled: list[str] = []
        """Jobs with two concurrently training attempts."""
        self.lost_slot_seconds = 0.0
        """Work that was done but not saved."""

    def poll(self) -> bool:
        """Claim placed shares, follow orders and end attempts of lost nodes.

        Returns whether it did any of these.
        """
        rows = self._read()
        by_attempt: dict[str, list[HeldShare]] = {}
        self.held = {}
        for row in rows:
            by_attempt.setdefault(row.attempt_id, []).append(row)
            self.held[row.node] = self.held.get(row.node, 0) + len(row.slots)
        changed = False
        for attempt_id in [each for each in self._runs if each not in by_attempt]:
            self._settle(self._runs.pop(attempt_id), saved=False)
            changed = True
        for attempt_id, shares in by_attempt.items():
            changed |= self._follow(attempt_id, shares)
        return changed

    def report(self) -> None:
        """Store the remaining time of each attempt, as its reports do."""
        now, found = self._timeline.seconds, []
        for run in self._runs.values():
            if run.trained_since is not None and not run.is_leaving:
                left = max(run.work.left - self._done(run, now), 0.0) / run.slots
                found.append((run.work.job_id, self._context.now() + timedelta(seconds=left)))
        store_progress(self._context, found)

    # ---- attempts -----------------------------------------------------------------------------

    def _read(self) -> Sequence[HeldShare]:
        share, attempt = attempt_nodes.c, attempts.c
        query = (
            select(
                share.attempt_id,
                share.node,
                share.slots,
                share.state,
                attempt.job_id,
                attempt.desired,
                attempt.state.label("attempt_state"),
            )
            .join(attempts, attempt.id == share.attempt_id)
            .where(HOLDS_SLOTS)
            .order_by(share.attempt_id, share.node_rank)
        )
        with self._context.database.read() as connection:
            return connection.execute(query).all()

    def _follow(self, attempt_id: str, shares: Sequence[HeldShare]) -> bool:
        run = self._runs.get(attempt_id)
        if run is None:
            if shares[0].attempt_state == AttemptState.ENDED:
                return False  # a lost share of an ended attempt
            run = self._begin(attempt_id, shares)
        joined, now = self._pilots.joined, self._timeline.seconds
        if run.lost_at is None and any(node not in joined for node in run.nodes):
            run.lost_at = now
        changed = False
        runs_on = shares[0].desired == DesiredState.RUN
        for row in shares:
            if row.state == AttemptNodeState.PLACED and row.node in joined and runs_on:
                changed |= self._claim(run, row.node)
        if not runs_on and not run.is_leaving and run.tokens:
            self._leave(run, saves=shares[0].desired == DesiredState.STOP)
            changed = True
        return changed

    def _begin(self, attempt_id: str, shares: Sequence[HeldShare]) -> _Run:
        work = self._works[shares[0].job_id]
        slots = sum(len(row.slots) for row in shares)
        run = _Run(work, attempt_id, slots, nodes={row.node for row in shares})
        self._runs[attempt_id] = run
        self.attempts += 1
        others = [r for r in self._runs.values() if r.work is work and r is not run]
        if any(r.lost_at is None and not r.is_counted for r in others):
            self.doubled.append(work.job.name)
        return run

    def _claim(self, run: _Run, node: str) -> bool:
        claim = Claim(protocol=PROTOCOL, node=node, worker=self._pilots.joined[node])
        (reply,) = claim_all(self._context, [(run.attempt_id, claim)])
        if isinstance(reply, ConflictError):
            return False
        assert isinstance(reply, ClaimReply), reply
        run.tokens[node] = reply.attempt_token
        if run.tokens.keys() == run.nodes and not run.is_placed_whole:
            run.is_placed_whole = True
            seconds = self._chance.uniform(*START_SECONDS)
            self._timeline.after(seconds, lambda: self._train(run))
        return True

    def _train(self, run: _Run) -> None:
        if run.is_leaving or run.lost_at is not None or run.is_counted:
            return
        joined = self._pilots.joined
        if any(node not in joined for node in run.nodes):
            return
        time = self._context.now().timestamp()
        beat = Heartbeat(phase=Phase.TRAINING, step=1, time=time)
        for node in run.tokens:
            self._report(run, node, beat=beat)
        run.trained_since = self._timeline.seconds
        self._timeline.after(run.work.left / run.slots, lambda: self._complete(run))

    def _complete(self, run: _Run) -> None:
        if run.is_leaving or run.is_counted or not self._lives(run):
            return
        self._end(run, "succeeded", step=STEPS)
        run.is_counted = True
        run.work.left = 0.0
        run.work.succeeded += 1

    def _leave(self, run: _Run, *, saves: bool) -> None:
        run.is_leaving = True
        seconds = self._chance.uniform(*SAVE_SECONDS) if saves else 2.0

        def left() -> None:
            if run.is_counted:
                return
            saved = saves and run.trained_since is not None and self._lives(run)
            self._settle(run, saved=saved)
            self._end(run, "stopped" if saves else "cancelled")

        self._timeline.after(seconds, left)

    def _lives(self, run: _Run) -> bool:
        return run.lost_at is None and all(node in self._pilots.joined for node in run.nodes)

    def _done(self, run: _Run, until: float) -> float:
        """Return the slot-seconds that an attempt has trained."""
        if run.trained_since is None:
            return 0.0
        end = until if run.lost_at is None else min(run.lost_at, until)
        return (end - run.trained_since) * run.slots

    def _settle(self, run: _Run, *, saved: bool) -> None:
        """Count the work of an attempt that ends before its job has succeeded."""
        if run.is_counted:
            return
        run.is_counted = True
        done = self._done(run, self._timeline.seconds)
        kept = (
            done if saved else done // (CHECKPOINT_EVERY * run.slots) * CHECKPOINT_EVERY * run.slots
        )
        self.lost_slot_seconds += done - kept
        run.work.left = max(run.work.left - kept, 1.0)

    # ---- reports ------------------------------------------------------------------------------

    def _end(self, run: _Run, outcome: Outcome, *, step: int = 0) -> None:
        time = self._context.now().timestamp()
        fields = {"outcome": outcome, "failure": None, "ranks": (), "time": time}
        record = check_record(ExitRecord, fields)
        beat = Heartbeat(phase=Phase.TRAINING, step=step, time=time) if step else None
        for node in run.tokens:
            if node in self._pilots.joined:
                self._report(run, node, beat=beat, record=record)

    def _report(
        self,
        run: _Run,
        node: str,
        *,
        beat: Heartbeat | None = None,
        record: ExitRecord | None = None,
    ) -> None:
        report = Report(
            protocol=PROTOCOL,
            node=node,
            identity=Identity(boot_id="boot", pid_namespace="1", pid=100, start_time=1),
            heartbeat=beat,
            exit=record,
        )
        token_hash = hash_token(run.tokens[node])
        try:
            share = authenticate_share(self._context, run.attempt_id, token_hash)
            store_report(self._context, share, report)
        except (ConflictError, UnauthenticatedError):
            return  # the share has ended meanwhile
