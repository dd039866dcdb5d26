"""Backfill: a job that ends in time overtakes, and never delays a job ahead of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from server.cluster.placement.backfill import MAX_KEEPERS
from server.cluster.placement.decide import Decisions, decide
from server.cluster.placement.demand import (
    CAUTION,
    LEAVES_WITHIN,
    Demand,
    Holding,
    Offer,
    QueuedJob,
)
from server.cluster.placement.fit import fits
from tests.server.cluster.placement.cluster import job, nodes_of, offer, withholding

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def lasting(name: str, world_size: int, count: float, **more: object) -> QueuedJob:
    """Return a job that needs `minutes`: twice its expected time, and the time to leave."""
    lasts = (minutes(count) - LEAVES_WITHIN) / CAUTION
    return replace(job(name, world_size, **more), lasts=lasts)


def held(until: float | None, **shares: Sequence[int]) -> Holding:
    """Return the holding of an attempt for a number of minutes."""
    slots = {node: tuple(indices) for node, indices in shares.items()}
    return Holding(slots, None if until is None else NOW + minutes(until))


HEAD = job("head", 4)
NODE = offer("a", 4, 2)
UNTIL_10 = [held(10, a=[0, 1])]
BOUND_AT_10 = [replace(UNTIL_10[0], ends_by=UNTIL_10[0].ends_at)]


def decided(jobs: Sequence[QueuedJob], *offers: Offer, holdings: Sequence[Holding]) -> Decisions:
    return decide(jobs, offers, holdings=holdings, now=NOW, preempt_after=minutes(10))


def test_a_job_that_ends_in_time_starts_on_slots_that_are_kept() -> None:
    found = decided([HEAD, lasting("short", 2, 10)], NODE, holdings=UNTIL_10)
    assert nodes_of(found, "short") == {"a": 2}
    assert found.backfilled == {"short": "head"}
    assert found.waiting == {"head": "needs 4 slots, 2 free, 2 held by other"}


def test_a_job_that_ends_later_or_whose_duration_is_unknown_waits() -> None:
    late, unknown = lasting("late", 2, 10.1), job("unknown", 1)
    found = decided([HEAD, late, unknown], NODE, holdings=UNTIL_10)
    assert found.placed == {}
    assert found.waiting["late"] == (
        "needs 2 slots, 2 free, kept for head, which is ahead, 2 held by other"
    )


def test_nothing_is_backfilled_where_the_start_of_the_job_ahead_is_unknown() -> None:
    for ends in (None, -1, 0):  # no pace, or an end that is overdue
        found = decided([HEAD, lasting("short", 1, 2)], NODE, holdings=[held(ends, a=[0, 1])])
        assert found.placed == {}


def test_a_duration_holds_on_its_kind_of_slot_alone() -> None:
    measured = replace(lasting("short", 2, 5), lasts_on="cuda")
    assert decided([HEAD, measured], NODE, holdings=UNTIL_10).placed == {}
    same = replace(measured, lasts_on="cpu")
    assert list(decided([HEAD, same], NODE, holdings=UNTIL_10).placed) == ["short"]


def test_what_starts_on_another_kind_of_slot_has_no_expected_end() -> None:
    free = offer("a", 4, device="cuda")
    first, short = lasting("first", 2, 11), lasting("short", 1, 5)
    on_cpu, on_cuda = (replace(first, lasts_on=device) for device in ("cpu", "cuda"))
    assert list(decided([on_cuda, HEAD, short], free, holdings=[]).placed) == ["first", "short"]
    assert list(decided([on_cpu, HEAD, short], free, holdings=[]).placed) == ["first"]


def test_slots_that_nobody_keeps_are_taken_first() -> None:
    head = job("head", 4, storage=("checkpoints", "uuid-1"))
    other = offer("b", 4, 3, roots={"checkpoints": "uuid-2"})
    found = decided([head, lasting("short", 2, 5)], NODE, other, holdings=UNTIL_10)
    assert nodes_of(found, "short") == {"b": 2}
    assert found.backfilled == {}


def test_every_job_that_keeps_a_node_needs_it_later() -> None:
    """The head needs only `a`, from 30 on; the next job starts on `b` at 10."""
    nodes = [NODE, offer("b", 4, 2, roots={"checkpoints": "uuid-2"})]
    holdings = [held(30, a=[0, 1]), held(10, b=[0, 1])]
    jobs = [job("head", 4, storage=("checkpoints", "uuid-1")), job("second", 3)]
    on_b = ("checkpoints", "uuid-2")
    found = decided([*jobs, lasting("x", 1, 20, storage=on_b)], *nodes, holdings=holdings)
    assert found.placed == {}
    found = decided([*jobs, lasting("x", 1, 10, storage=on_b)], *nodes, holdings=holdings)
    assert found.backfilled == {"x": "second"}


def test_a_job_behind_others_counts_from_their_starts_on() -> None:
    """Without the head, the second job of unknown duration would fit now: it starts after it."""
    jobs = [HEAD, job("second", 1), lasting("short", 2, 10)]
    assert decided(jobs, NODE, holdings=UNTIL_10).backfilled == {"short": "head"}


def test_what_starts_in_the_same_round_counts_with_its_expected_end() -> None:
    free = offer("a", 4)
    jobs = [lasting("first", 2, 21), HEAD, lasting("short", 1, 10), lasting("late", 2, 11)]
    found = decided(jobs, free, holdings=[])
    assert list(found.placed) == ["first", "short"]
    endless = [replace(jobs[0], lasts=None), *jobs[1:]]
    assert list(decided(endless, free, holdings=[]).placed) == ["first"]


def test_parts_of_a_gpu_that_become_free_do_not_help_a_job_of_several_slots() -> None:
    divided = replace(offer("a", 4, 2, device="cuda"), partitions=(0, 1))
    holdings = [held(5, a=[0, 1]), held(10, b=[0])]
    nodes = [divided, offer("b", 2, 1, device="cuda")]
    found = decided([HEAD, lasting("one", 1, 10)], *nodes, holdings=holdings)
    assert found.backfilled == {"one": "head"}, "it starts at the end on `b`, not at that on `a`"
    assert decided([HEAD, lasting("one", 1, 11)], *nodes, holdings=holdings).placed == {}


def test_slots_behind_a_withheld_one_count_when_they_become_free() -> None:
    node = replace(withholding(offer("a", 4), 0), free=(1,))
    holdings = [held(10, a=[2, 3])]
    head = job("head", 3)
    assert list(decided([head, lasting("one", 1, 10)], node, holdings=holdings).placed) == ["one"]
    assert decided([head, lasting("one", 1, 11)], node, holdings=holdings).placed == {}


def test_starts_of_a_bounded_number_of_jobs_are_computed() -> None:
    """Equal ends: each waiting job could start at 10, but the last one's start is not computed."""
    ahead = [job(f"ahead-{size}", 60 + size) for size in range(MAX_KEEPERS)]
    nodes = [offer("a", 80, 40)]
    holdings = [held(10, a=range(40))]
    short = lasting("short", 1, 5)
    assert "short" in decided([*ahead, short], *nodes, holdings=holdings).placed
    further = [*ahead, job("further", 79)]
    assert decided([*further, short], *nodes, holdings=holdings).placed == {}


Row = tuple[int, int | None, str | None, int, int, int | None]
"""Slots, nodes, storage, minute of arrival, real minutes, and the excess of the estimate."""

# A small cluster on virtual time: rounds at each arrival and at each end.


@dataclass(frozen=True)
class Work:
    """A job with its arrival and its real duration."""

    job: QueuedJob
    arrives: datetime
    runs: timedelta


@dataclass
class Cluster:
    """Nodes, running attempts and waiting jobs."""

    nodes: Sequence[Offer]
    queue: list[Work]
    """In the order of the queue, including jobs that have not arrived yet."""
    running: dict[str, tuple[Holding, datetime]]
    """The holding of each job, with its real end."""
    now: datetime
    backfills: bool = True

    def offers(self) -> list[Offer]:
        taken: dict[str, set[int]] = {node.node: set() for node in self.nodes}
        for holding, _ in self.running.values():
            for node, slots in holding.shares.items():
                assert not taken[node] & set(slots), "no slot twice"
                taken[node] |= set(slots)
        return [
            replace(node, free=tuple(sorted(node.indices - taken[node.node])))
            for node in self.nodes
        ]

    def holdings(self) -> list[Holding]:
        """Return the holdings of attempts; an overdue end counts as unknown."""
        return [
            replace(
                held, ends_at=held.ends_at if held.ends_at and held.ends_at > self.now else None
            )
            for held, _ in self.running.values()
        ]

    def waiting(self) -> list[Work]:
        return [work for work in self.queue if work.arrives <= self.now]

    def round(self) -> Decisions:
        waits = self.waiting()
        jobs = [w.job if self.backfills else replace(w.job, lasts=None) for w in waits]
        found = decide(
            jobs, self.offers(), holdings=self.holdings(), now=self.now, preempt_after=minutes(1)
        )
        for work in waits:
            if work.job.id in found.placed:
                self.queue.remove(work)
                shares = {share.node: share.slots for share in found.placed[work.job.id]}
                lasts = work.job.lasts
                ends_at = None if lasts is None else self.now + lasts
                self.running[work.job.id] = (
                    Holding(
                        shares,
                        ends_at,
                        attempt_id=work.job.id,
                        overtook_at=self.now if work.job.id in found.giving_way else None,
                    ),
                    self.now + work.runs,
                )
        return found

    def leave(self, found: Decisions) -> bool:
        """End the attempts that a round orders to leave; return whether there was any."""
        leaving = [held.attempt_id for each in found.victims.values() for held in each]
        for key in leaving:
            del self.running[key]
        return bool(leaving)

    def advance(self) -> bool:
        """Advance to the next end or arrival; return whether one exists."""
        moments = [end for _, end in self.running.values()]
        moments += [work.arrives for work in self.queue if work.arrives > self.now]
        if not moments:
            return False
        self.now = min(moments)
        self.running = {key: run for key, run in self.running.items() if run[1] > self.now}
        return True

    def head(self) -> QueuedJob | None:
        """Return the first waiting job that the nodes could hold."""
        able = (work.job for work in self.waiting() if fits(work.job.demand, self.nodes))
        return next(able, None)

    def promise(self, job: QueuedJob) -> datetime | None:
        """Return the first known end after which a job fits, by trying each."""
        ends = sorted({h.ends_at for h in self.holdings() if h.ends_at is not None} | {self.now})
        for end in ends:
            left = {
                key: run
                for key, run in self.running.items()
                if run[0].ends_at is None or run[0].ends_at > end
            }
            if fits(job.demand, replace_running(self, left).offers()):
                return end
        return None

    def start_without_backfill(self, job: QueuedJob) -> datetime | None:
        """Return the start of a job if nothing is backfilled from now on."""
        twin = Cluster(self.nodes, list(self.queue), dict(self.running), self.now, backfills=False)
        while job.id not in twin.round().placed:
            if not twin.advance():
                return None
        return twin.now


def replace_running(cluster: Cluster, running: Mapping[str, tuple[Holding, datetime]]) -> Cluster:
    return Cluster(cluster.nodes, [], dict(running), cluster.now)


nodes_strategy = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from(["uuid-1", "uuid-1", "uuid-2"]),
        st.sets(st.integers(0, 3), max_size=2),  # withheld
    ),
    min_size=1,
    max_size=4,
).map(
    lambda rows: [
        withholding(
            offer(f"n{number}", slots, roots={"checkpoints": root}),
            *(slot for slot in withheld if slot < slots),
        )
        for number, (slots, root, withheld) in enumerate(rows)
    ]
)
works_strategy = st.lists(
    st.tuples(
        st.integers(1, 8),
        st.sampled_from([None, None, 1, 2]),  # nodes
        st.sampled_from([None, None, "uuid-1", "uuid-2"]),
        st.integers(0, 10),  # arrival
        st.integers(1, 20),  # real duration
        st.sampled_from([None, 0, 0, 0, 3, 10]),  # how much longer is expected, if known
    ),
    min_size=5,
    max_size=12,
)
thorough = settings(max_examples=300)
"""One small cluster in thirty reveals a broken rule of backfill."""


def works(rows: Sequence[Row]) -> list[Work]:
    made = []
    for number, (size, nodes, root, arrives, runs, more) in enumerate(rows):
        storage = None if root is None else ("checkpoints", root)
        one = QueuedJob(
            f"j{number}",
            f"j{number}",
            Demand(size, nodes=nodes, storage=storage),
            lasts=None if more is None else minutes(runs + more),
        )
        made.append(Work(one, NOW + minutes(arrives), minutes(runs)))
    return sorted(made, key=lambda work: work.arrives)


@thorough
@given(nodes_strategy, works_strategy)
def test_no_decision_puts_off_the_first_job_that_waits(
    nodes: Sequence[Offer], rows: Sequence[Row]
) -> None:
    """With real durations of at most the expected ones, its expected start is kept or improved."""
    cluster = Cluster(nodes, works(rows), {}, NOW)
    promised: dict[str, datetime] = {}
    while True:
        for one in cluster.round().placed:
            assert cluster.now <= promised.get(one, cluster.now), "a promise is kept"
        head = cluster.head()
        promise = None if head is None else cluster.promise(head)
        if head is not None and head.id in promised:
            assert promise is not None
            assert promise <= promised[head.id]
        if head is not None and promise is not None:
            promised[head.id] = promise
        if not cluster.advance():
            break
    assert not [work for work in cluster.queue if fits(work.job.demand, nodes)], "none starves"


@thorough
@given(nodes_strategy, works_strategy)
def test_the_first_job_that_waits_starts_no_later_than_without_backfill(
    nodes: Sequence[Offer], rows: Sequence[Row]
) -> None:
    """If every duration is known exactly; compared at every decision that backfills."""
    cluster = Cluster(nodes, works([(*row[:5], 0) for row in rows]), {}, NOW)
    without: dict[str, datetime] = {}
    while True:
        twin = Cluster(nodes, list(cluster.queue), dict(cluster.running), cluster.now)
        found = cluster.round()
        assert all(cluster.now <= without.get(one, cluster.now) for one in found.placed)
        head = cluster.head()
        if head is not None and found.backfilled:
            start = twin.start_without_backfill(head)
            assert start is not None
            without.setdefault(head.id, start)
        if not cluster.advance():
            break


@thorough
@given(nodes_strategy, works_strategy, st.lists(st.integers(0, 12), min_size=12, max_size=12))
def test_a_wrong_estimate_delays_the_first_job_that_waits_by_no_more_than_a_save(
    nodes: Sequence[Offer], rows: Sequence[Row], expected: Sequence[int]
) -> None:
    """Expected durations are arbitrary; attempts leave immediately when ordered.

    At every moment the first job would not fit on the free slots and those of the jobs that
    overtook it, except for a minute in which one of these is expected to end by itself.
    """
    made = [
        replace(work, job=replace(work.job, queued_at=work.arrives, lasts=minutes(lasts)))
        for work, lasts in zip(works(rows), expected, strict=False)
    ]
    cluster = Cluster(nodes, made, {}, NOW)
    while True:
        while (found := cluster.round()).placed or cluster.leave(found):
            pass
        head = cluster.head()
        if head is not None:
            overtook = [held for held in cluster.holdings() if held.gives_way_to(head)]
            soon = any(h.ends_at and h.ends_at <= cluster.now + LEAVES_WITHIN for h in overtook)
            left = {k: run for k, run in cluster.running.items() if not run[0].gives_way_to(head)}
            assert soon or not fits(head.demand, replace_running(cluster, left).offers())
        if not cluster.advance():
            break
