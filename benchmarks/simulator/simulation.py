"""One run: events of a trace in virtual time, with a scheduler's round after each.

The scheduler is the real one: `Placer` with the lead, on migrated tables, with `enter_groups`,
`decide` and the transactions of a placement. The rest is written as rows, in a few statements for
all events between two rounds: jobs arrive; attempts train from their placement on, report their
remaining time, and end. So HTTP, Celery, processes, claims and the other parts of a round are
omitted. Only attempts that give way are preempted, and train on for `LEAVE_SECONDS` or to their
end. Rounds start at multiples of the scheduler's pause, and only after a change: otherwise the
scheduler would find the same state.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from benchmarks.control_plane.servers import Store
from benchmarks.simulator.checks import (
    MAX_STARTED,
    NEVER,
    Line,
    Running,
    Waiting,
    earliest_start,
    head_behind,
)
from benchmarks.simulator.clock import BEGINNING, VirtualClock, moment
from benchmarks.simulator.cluster import (
    Placed,
    add_jobs,
    add_nodes,
    add_projects,
    end,
    leave,
    read_leaving,
    read_placed,
    read_ungrouped,
    report,
    start,
)
from benchmarks.simulator.trace import Known, Trace, TracedJob
from server.scheduler.rounds.dispatch import Message
from server.scheduler.rounds.leader import Leader, leading
from server.scheduler.rounds.loop import TICK_SECONDS
from server.scheduler.rounds.round import Placer
from trainyard.protocol.worker_messages import LaunchMessage

MEMORY_EVERY = 0.05
"""Share of the jobs that start between two samples of the memory."""
NO_PREEMPTION = 1e9
"""Time since its first step after which an attempt may be preempted for priority: never."""
LEAVE_SECONDS = 15.0
"""Time in which an attempt ordered to leave saves and leaves."""
_PAGE_MIB = 4096 / 2**20


class Messages:
    """Keeps the messages of a round, instead of a broker."""

    def __init__(self) -> None:
        self.attempt_ids: set[str] = set()
        self.up_since: datetime | None = BEGINNING

    def send(self, message: Message) -> None:
        """Keep one message."""
        if isinstance(message, LaunchMessage):
            self.attempt_ids.add(message.attempt_id)


@dataclass(frozen=True)
class _Attempt:
    """A running attempt."""

    placed: Placed
    job: TracedJob
    began_at: float
    ends_at: float
    running: Running


@dataclass
class Record:
    """Results of a run; virtual times in seconds, unless their names differ."""

    placements: int = 0
    backfills: int = 0
    scheduler_cpu_seconds: float = 0.0
    round_seconds: list[float] = field(default_factory=list)
    """Wall time of each round."""
    waits: list[tuple[float, TracedJob]] = field(default_factory=list)
    head_waits: list[tuple[float, float]] = field(default_factory=list)
    """For each head of the queue its time as the head, and the limit: the time to its expected
    start when it became the head; without one, the longest remaining time of any attempt."""
    most_waiting: int = 0
    memory_mib: list[float] = field(default_factory=list)
    makespan: float = 0.0
    waiting_seconds: float = 0.0
    """Time during which jobs waited."""
    held_while_waiting: float = 0.0
    """Slot-time held during that time."""
    expected: list[float] = field(default_factory=list)
    """Expected durations of completed attempts, relative to their real ones."""
    left: int = 0
    """Attempts that gave way to the head of the queue."""
    kept_seconds: list[float] = field(default_factory=list)
    """For each head, the time for which it waited only for attempts that give way to it."""
    contended_seconds: float = 0.0
    """Time during which every project had a waiting job."""
    contended_slot_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Slot-time that each project held during that time."""
    violations: list[str] = field(default_factory=list)
    """Broken rules of rounds."""


class Simulation:
    """A trace on a database."""

    def __init__(
        self,
        opened: Store,
        trace: Trace,
        *,
        known: Known = "bounds",
        rounds_take_time: bool = False,
    ) -> None:
        """Take the lead on an empty database.

        Args:
            opened: the database; its clock is replaced by the simulation's.
            trace: the arriving jobs.
            known: what is known about the durations of new jobs.
            rounds_take_time: whether a round lasts as long as its processor time, so that more jobs
                arrive before the next one; otherwise it takes no time.
        """
        clock = VirtualClock()
        settings = opened.context.settings.model_copy(
            update={"preempt_after_seconds": NO_PREEMPTION}
        )
        context = replace(opened.context, clock=clock, settings=settings)
        leader = Leader(context.database)
        epoch = leader.held()
        assert epoch is not None, "a new database has no leader"
        self._context = leading(context, leader, epoch)
        self._clock = clock
        self._trace = trace
        self._known = known
        self._kept_since: float | None = None
        self._rounds_take_time = rounds_take_time
        self._messages = Messages()
        self._placer = Placer(self._context, self._messages)
        self._waiting: dict[str, Waiting] = {}
        self._line = Line()
        self._attempts: dict[str, _Attempt] = {}
        self._ends: list[tuple[float, str]] = []
        self._leaving: set[str] = set()
        self._arrived = 0
        self._free = trace.slots
        self._held: Counter[str] = Counter()
        self._waiting_by_project: Counter[str] = Counter()
        self._head: tuple[str, float, float] | None = None
        self.record = Record()

    def run(self) -> Record:
        """Run the whole trace; return the results."""
        add_nodes(self._context, self._trace.nodes)
        add_projects(self._context, self._trace.weights)
        busy, tick, pause = False, 0, 1
        while self._waiting or self._ends or self._arrived < len(self._trace.jobs):
            event = 0 if busy else math.ceil(self._next_event() / TICK_SECONDS)
            tick = max(event, tick + pause)
            self._advance(tick * TICK_SECONDS)
            cpu_before = self.record.scheduler_cpu_seconds
            busy = self._round()
            if self._rounds_take_time:
                lasted = self.record.scheduler_cpu_seconds - cpu_before
                pause = 1 + math.ceil(lasted / TICK_SECONDS)
            idle = not busy and not self._ends and self._arrived == len(self._trace.jobs)
            if idle and self._waiting:
                first = next(iter(self._waiting.values())).job.name
                self.record.violations.append(f"{first} waits for ever on an idle cluster")
                break
        self.record.makespan = self._clock.seconds
        return self.record

    def _next_event(self) -> float:
        arrival = (
            self._trace.jobs[self._arrived].arrives_at
            if self._arrived < len(self._trace.jobs)
            else NEVER
        )
        return min(arrival, self._ends[0][0] if self._ends else NEVER)

    def _advance(self, until: float) -> None:
        """Let jobs arrive and attempts end, up to a time."""
        arriving: list[TracedJob] = []
        ended: list[Placed] = []
        left: list[_Attempt] = []
        while (now := self._next_event()) <= until:
            self._let_pass(now)
            if self._ends and self._ends[0][0] == now:
                attempt = self._attempts[heapq.heappop(self._ends)[1]]
                placed = self._end(attempt.placed.attempt_id)
                if now < attempt.ends_at:
                    left.append(attempt)
                else:
                    self._note_error(attempt)
                    ended.append(placed)
            else:
                job = self._trace.jobs[self._arrived]
                self._arrived += 1
                self._waiting_by_project[job.project] += 1
                arriving.append(job)
        self._let_pass(until)
        if ended:
            end(self._context, ended)
        if left:
            self._queue_again(left)
        if arriving:
            timed = [(job, moment(job.arrives_at)) for job in arriving]
            ids = add_jobs(self._context, timed, self._known)
            for job_id, job in zip(ids, arriving, strict=True):
                self._waiting[job_id] = Waiting(job_id, job)
                self._line.add(self._waiting[job_id])
            self.record.most_waiting = max(self.record.most_waiting, len(self._waiting))

    def _let_pass(self, until: float) -> None:
        record, seconds = self.record, until - self._clock.seconds
        if not seconds:
            return
        if self._waiting:
            record.waiting_seconds += seconds
            record.held_while_waiting += (self._trace.slots - self._free) * seconds
        if len(+self._waiting_by_project) == len(self._trace.weights):
            record.contended_seconds += seconds
            for project, slots in self._held.items():
                record.contended_slot_seconds[project] += slots * seconds
        self._clock.seconds = until

    def _round(self) -> bool:
        """Run a round and check it; return whether the next one may do more."""
        ends = ((a.placed.job_id, a.running.expected_end) for a in self._attempts.values())
        report(self._context, [(job_id, moment(at)) for job_id, at in ends if at < NEVER])
        before = time.perf_counter()
        cpu_before = time.process_time()
        self._placer.run()
        self.record.scheduler_cpu_seconds += time.process_time() - cpu_before
        self.record.round_seconds.append(time.perf_counter() - before)
        ungrouped = read_ungrouped(self._context)
        placed = read_placed(self._context, self._messages.attempt_ids)
        self._messages.attempt_ids.clear()
        self._check(placed, ungrouped)
        if placed:
            start(self._context, placed)
        return bool(placed or ungrouped or self._let_leave())

    def _let_leave(self) -> bool:
        """Make attempts leave soon if the scheduler orders it; return whether any does."""
        if not self._placer.preempt():
            return False
        leaves_at = self._clock.seconds + LEAVE_SECONDS
        for attempt_id in read_leaving(self._context, [*self._attempts]) - self._leaving:
            attempt = self._attempts[attempt_id]
            self._leaving.add(attempt_id)
            self._ends.remove((attempt.ends_at, attempt_id))
            self._ends.append((min(attempt.ends_at, leaves_at), attempt_id))
        heapq.heapify(self._ends)
        return True

    def _queue_again(self, attempts: Sequence[_Attempt]) -> None:
        """Queue the jobs of attempts that have left, each with its remaining time."""
        now, leaving = self._clock.seconds, []
        for attempt in attempts:
            left = attempt.ends_at - now
            part = left / attempt.job.seconds
            expected = attempt.job.expected_seconds
            job = replace(
                attempt.job,
                arrives_at=now,
                seconds=left,
                expected_seconds=expected and expected * part,
            )
            leaving.append((attempt.placed, attempt.job, 1 - part))
            waiting = self._waiting[attempt.placed.job_id] = Waiting(attempt.placed.job_id, job)
            self._line.add(waiting)
            self._waiting_by_project[job.project] += 1
        leave(self._context, leaving)
        self.record.left += len(leaving)

    def _check(self, placed: Sequence[Placed], ungrouped: set[str]) -> None:
        """Compare a round with the order of the queue, and count its placements as started."""
        order = self._line.in_order(self._held, self._trace.weights, without=ungrouped)
        ids = {each.job_id for each in placed}
        head, behind = head_behind(order, ids)
        running: list[Running] = []  # except those that give way to the head
        freed = 0
        for attempt in self._attempts.values():
            if head is not None and self._lets_ahead(attempt.running, head, ungrouped):
                freed += attempt.running.slots
            else:
                running.append(attempt.running)
        free = self._free - sum(self._waiting[job_id].job.world_size for job_id in ids - behind)
        for each in placed:
            self._begin(each, behind)
        if head is None:
            self._head = None
            return
        now, size = self._clock.seconds, head.job.world_size
        ahead = [self._attempts[p.attempt_id].running for p in placed if p.job_id not in behind]
        without = earliest_start(size, free + freed, [*running, *ahead])
        for begun in (self._attempts[p.attempt_id].running for p in placed):
            if begun.overtook is None:
                running.append(begun)
            else:
                freed += begun.slots
        with_all = earliest_start(size, self._free + freed, running)
        self._note_kept(self._free + freed >= size)
        if size <= free and len(placed) < MAX_STARTED:
            self.record.violations.append(f"{head.job.name} fits and waits, at {now:.2f} s")
        elif with_all > without:
            self.record.violations.append(
                f"{head.job.name} is put off at {now:.2f} s: {without:.2f} s to {with_all:.2f} s"
            )
        self._follow_head(head, with_all)

    def _lets_ahead(self, each: Running, head: Waiting, ungrouped: set[str]) -> bool:
        return self._line.lets_ahead(
            each, head, held=self._held, weights=self._trace.weights, without=ungrouped
        )

    def _begin(self, placed: Placed, behind: set[str]) -> None:
        waited, now = self._waiting.pop(placed.job_id), self._clock.seconds
        self._line.remove(waited)
        job = waited.job
        expected = NEVER if job.expected_seconds is None else now + job.expected_seconds
        running = Running(job.world_size, expected, waited if placed.gives_way else None, now)
        attempt = _Attempt(placed, job, now, now + job.seconds, running)
        self._attempts[placed.attempt_id] = attempt
        heapq.heappush(self._ends, (now + job.seconds, placed.attempt_id))
        self._free -= job.world_size
        self._held[job.project] += job.world_size
        self._waiting_by_project[job.project] -= 1
        record = self.record
        if self._head is not None and self._head[0] == placed.job_id:
            record.head_waits.append((now - self._head[1], self._head[2]))
            self._head = None
            self._note_kept(False)
        if (placed.job_id in behind) != (placed.backfilled_before is not None):
            record.violations.append(
                f"{job.name} starts at {now:.2f} s, backfilled before {placed.backfilled_before}, "
                f"and is {'' if placed.job_id in behind else 'not '}behind the head of the queue"
            )
        record.placements += 1
        record.backfills += placed.job_id in behind
        record.waits.append((now - job.arrives_at, job))
        if record.placements % max(int(len(self._trace.jobs) * MEMORY_EVERY), 1) == 0:
            record.memory_mib.append(_memory_mib())

    def _note_kept(self, is_kept: bool) -> None:
        """Note since when the head of the queue waits only for attempts that give way to it."""
        if is_kept and self._kept_since is None:
            self._kept_since = self._clock.seconds
        elif not is_kept and self._kept_since is not None:
            self.record.kept_seconds.append(self._clock.seconds - self._kept_since)
            self._kept_since = None

    def _follow_head(self, head: Waiting, expected_start: float) -> None:
        """Note since when a job is the head of the queue, and its latest start."""
        if self._head is not None and self._head[0] == head.id:
            return
        now = self._clock.seconds
        last_end = max((each.ends_at for each in self._attempts.values()), default=now)
        self._head = head.id, now, (expected_start if expected_start < NEVER else last_end) - now

    def _note_error(self, attempt: _Attempt) -> None:
        expected_at = attempt.placed.expected_end_at
        if expected_at is not None and attempt.placed.number == 1 and self._known == "history":
            expected = (expected_at - moment(attempt.began_at)).total_seconds()
            self.record.expected.append(expected / attempt.job.seconds)

    def _end(self, attempt_id: str) -> Placed:
        attempt = self._attempts.pop(attempt_id)
        self._leaving.discard(attempt_id)
        self._free += attempt.job.world_size
        self._held[attempt.job.project] -= attempt.job.world_size
        return attempt.placed


def _memory_mib() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * _PAGE_MIB
