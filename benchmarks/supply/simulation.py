"""One run: jobs arrive, engines and nodes act, and the real scheduler's rounds follow.

Every round is a whole one (`Scheduler.tick`), on migrated tables. The real `EngineCalls` carry out
its calls of provisioners on simulated engines, some seconds later; one in fifty is lost and another
is duplicated. Pilots, claims, first steps and ends go through the server's services; heartbeats and
the remaining time of attempts are written as rows.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sqlalchemy import select

from benchmarks.control_plane.servers import Store
from benchmarks.supply.engines import Life, SimulatedEngine
from benchmarks.supply.events import SeededContext, Timeline
from benchmarks.supply.mix import MixedJob, SimulatedSource
from benchmarks.supply.nodes import Pilots, add_source, provisioner
from benchmarks.supply.record import AnyRow, Observer, Record
from benchmarks.supply.training import Training, Work
from provisioner.engine_calls import EngineCalls
from server.app.periodic_work import periodic_work
from server.cluster.supply.service import end_request
from server.core.database.rows import Job
from server.core.database.source_tables import node_requests
from server.core.database.tables import jobs
from server.core.errors import ConflictError
from server.core.liveness import beat
from server.core.subject import Actor
from server.core.visibility.scope import SYSTEM_SCOPE
from server.jobs.jobs.service import cancel
from server.jobs.jobs.submission import SubmittedSpec, submit_all
from server.scheduler.autoscaling.end_shares import end_shares
from server.scheduler.rounds.dispatch import Message
from server.scheduler.rounds.leader import Leader
from server.scheduler.rounds.loop import Scheduler
from trainyard.protocol.node_sources.messages import SourceMessage
from trainyard.protocol.states import TERMINAL_JOB_STATES
from trainyard.spec.job import parse_job_spec

PERSON = Actor("simulator", scope=SYSTEM_SCOPE)
TICK, LONGEST_PAUSE = 2.0, 10.0
"""Pause between two rounds after a change, and while nothing changes."""
BEAT_EVERY = 5.0
"""Servers without a beat for longer count as away."""
HEARTBEAT_EVERY, PERSON_EVERY = 10.0, 600.0
MESSAGE_SECONDS = (0.3, 2.0)
LOST = DOUBLED = 0.02
LONGEST = 5 * 86_400.0
"""Time limit of a run: beyond it, a job waits for ever."""


class Outbox:
    """Delivers the messages to provisioners after a while; workers poll."""

    def __init__(self, timeline: Timeline, chance: random.Random) -> None:
        self._timeline = timeline
        self._chance = chance
        self.up_since: datetime | None = datetime.min.replace(tzinfo=UTC)
        self.calls: dict[str, EngineCalls] = {}
        """The provisioner of each source."""
        self.sent = 0

    def send(self, message: Message) -> None:
        """Deliver a message, unless it is lost."""
        if not isinstance(message, SourceMessage):
            return
        self.sent += 1
        drawn = self._chance.random()
        for _ in range(0 if drawn < LOST else 2 if drawn < LOST + DOUBLED else 1):
            seconds = self._chance.uniform(*MESSAGE_SECONDS)
            carry_out = self.calls[message.source].carry_out
            self._timeline.after(seconds, partial(carry_out, message))


class _Machines:
    """The machines of all engines, which know them before the pilots exist."""

    pilots: Pilots
    training: Training

    def boot(self, source: str, request_id: str, life: Life) -> None:
        """Start a pilot."""
        self.pilots.boot(source, request_id, life)

    def kill(self, life: Life) -> None:
        """End a pilot."""
        self.pilots.kill(life)

    def is_busy(self, life: Life) -> bool:
        """Return whether an attempt holds slots of a pilot's node."""
        return self.training.held.get(self.pilots.name_of(life) or "", 0) > 0


class Simulation:
    """A queue over sources, on a database."""

    def __init__(
        self,
        opened: Store,
        mixed: Sequence[MixedJob],
        sources: Sequence[SimulatedSource],
        *,
        seed: int,
        idle_seconds: float,
        folder: Path,
    ) -> None:
        """Register the sources.

        Args:
            opened: an empty database.
            mixed: the jobs by arrival.
            sources: the sources of nodes.
            seed: seed of all random numbers.
            idle_seconds: idle time of each source.
            folder: folder for the provisioners' files.
        """
        timeline, given = Timeline(), opened.context
        self._timeline = timeline
        self._context = SeededContext(
            given.settings, given.database, timeline, random.Random(f"{seed} ids")
        )
        self._mixed = mixed
        self._works: dict[str, Work] = {}
        self._outbox = Outbox(timeline, random.Random(f"{seed} messages"))
        self._pilots = Pilots(
            self._context, timeline, {source.name: source.slots for source in sources}
        )
        machines = _Machines()
        machines.pilots = self._pilots
        self.engines = {
            source.name: SimulatedEngine(source, timeline, machines=machines, seed=seed)
            for source in sources
        }
        for source in sources:
            config = add_source(self._context, source, idle_seconds=idle_seconds)
            engine = self.engines[source.name]
            calls = provisioner(self._context, config, engine=engine, folder=folder)
            self._outbox.calls[source.name] = calls
        self.training = Training(
            self._context,
            timeline,
            pilots=self._pilots,
            works=self._works,
            chance=random.Random(f"{seed} training"),
        )
        machines.training = self.training
        self._observer = Observer(self._context, sources)
        leader = Leader(given.database)
        self._scheduler = Scheduler(
            self._context, self._outbox, leader=leader, work_of=periodic_work
        )
        self.rounds = 0

    @property
    def record(self) -> Record:
        """Results of the run so far."""
        return self._observer.record

    @property
    def works(self) -> Mapping[str, Work]:
        """The jobs that have arrived, by id."""
        return self._works

    @property
    def seconds(self) -> float:
        """The present virtual time."""
        return self._timeline.seconds

    def run(self) -> None:
        """Run until every job and every request has ended."""
        timeline = self._timeline
        for job in self._mixed:
            timeline.at(job.arrives_at, partial(self._arrive, job))
        self._each(PERSON_EVERY, self._end_forgotten)
        changed, heard_at = True, 0.0
        while not self._is_over():
            before = timeline.seconds
            upcoming = timeline.next_at()
            pause = TICK if changed else LONGEST_PAUSE
            if upcoming is not None:
                pause = min(max(math.ceil(upcoming - before), TICK), pause)
            joined = {node: self._pilots.source_of[node] for node in self._pilots.joined}
            self._observer.note(before, pause, joined=joined, held=self.training.held)
            if pause > BEAT_EVERY:
                timeline.advance(before + BEAT_EVERY)
                beat(self._context)
            timeline.advance(before + pause)
            beat(self._context)
            if timeline.seconds >= heard_at + HEARTBEAT_EVERY:
                heard_at = timeline.seconds
                self._pilots.heartbeat()
                self.training.report()
            changed = self._round()
            if timeline.seconds > LONGEST:
                self.record.violations.append("a job waits for ever")
                return

    def requests(self) -> Sequence[AnyRow]:
        """Return all requests, the oldest first."""
        with self._context.database.read() as connection:
            query = select(node_requests).order_by(node_requests.c.id)
            return connection.execute(query).all()

    def states(self) -> Mapping[str, str]:
        """Return the state of each job by id."""
        with self._context.database.read() as connection:
            rows = connection.execute(select(jobs.c.id, jobs.c.state)).all()
        return {row.id: str(row.state) for row in rows}

    def _round(self) -> bool:
        sent = self._outbox.sent
        self._scheduler.tick()
        self.rounds += 1
        return self.training.poll() or self._outbox.sent != sent

    def _is_over(self) -> bool:
        if len(self._works) < len(self._mixed) or self.training.held:
            return False
        ended = set(map(str, TERMINAL_JOB_STATES))
        if any(state not in ended for state in self.states().values()):
            return False
        return all(row.ended_at is not None for row in self.requests())

    def _each(self, seconds: float, action: object) -> None:
        assert callable(action)

        def again() -> None:
            action()
            self._timeline.after(seconds, again)

        self._timeline.after(seconds, again)

    def _arrive(self, job: MixedJob) -> None:
        spec = parse_job_spec(dict(job.spec()))
        (stored,) = submit_all(self._context, [SubmittedSpec(spec, PERSON)])
        assert isinstance(stored, Job), stored
        job_id = stored.id
        self._works[job_id] = Work(job, job_id, job.slot_seconds)
        if job.cancelled_at is not None:
            self._timeline.at(job.cancelled_at, partial(self._cancel, job_id))

    def _cancel(self, job_id: str) -> None:
        with suppress(ConflictError):  # it has ended
            cancel(self._context, job_id, actor=PERSON, reason="not needed any more")

    def _end_forgotten(self) -> None:
        """End by name the requests with an ended allocation but without an engine's proof."""
        for row in self.requests():
            allocation = self.engines[row.source].allocations.get(row.id)
            over = allocation is not None and allocation.state == "ended"
            if row.ended_at is None and over and row.engine_state in ("unknown", "ended"):
                end_request(self._context, row.source, row.id, actor=PERSON, end_shares=end_shares)


def simulate(
    opened: Store,
    mixed: Sequence[MixedJob],
    sources: Sequence[SimulatedSource],
    *,
    seed: int,
    idle_seconds: float,
) -> Simulation:
    """Run a queue over sources to its end; return it with its results."""
    with tempfile.TemporaryDirectory(prefix="trainyard-supply-") as folder:
        simulation = Simulation(
            opened, mixed, sources, seed=seed, idle_seconds=idle_seconds, folder=Path(folder)
        )
        simulation.run()
    return simulation
