"""Assigns slots to jobs and explains why other jobs wait, in pure functions.

See docs/lifecycle-placing.md, 3-5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from server.cluster.placement.backfill import Keeper, estimated, needed_before
from server.cluster.placement.demand import (
    CAUTION,
    LEAVES_WITHIN,
    Demand,
    Holding,
    Offer,
    QueuedJob,
)
from server.cluster.placement.fit import NodeGroup, choose, could_hold, groups, unit_on
from server.cluster.placement.open_nodes import OpenNodes
from server.cluster.placement.preempt import victims
from server.cluster.placement.quotas import Quota, Quotas
from server.cluster.placement.reasons import why_job_waits
from trainyard.protocol.attempt import NodeAllocation


@dataclass(frozen=True)
class Decisions:
    """Decisions on the jobs of a round; jobs behind a cut (see `decide`) are omitted."""

    placed: dict[str, tuple[NodeAllocation, ...]] = field(default_factory=dict)
    """Allocation of each job that starts, by job id."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Reason why a job waits, by job id."""
    backfilled: dict[str, str] = field(default_factory=dict)
    """Name of the waiting job that keeps the nodes of a backfilled job, by id of the backfilled
    job. If several jobs keep these nodes, the first of them.
    """
    victims: dict[str, Sequence[Holding]] = field(default_factory=dict)
    """Attempts that must be preempted, by id of the job that needs their slots."""
    over_quota: set[str] = field(default_factory=set)
    """Ids of jobs that wait because of a quota of their project, or a limit of their owner."""
    keeping: set[Demand] = field(default_factory=set)
    """Demands of the jobs that keep nodes."""
    expected_ends: dict[str, datetime] = field(default_factory=dict)
    """Expected end of each job that starts, by job id; jobs with an unknown end are omitted."""
    giving_way: set[str] = field(default_factory=set)
    """Ids of jobs that are backfilled on an estimate, and therefore give way."""


def decide(
    jobs: Sequence[QueuedJob],
    offers: Sequence[Offer],
    *,
    holdings: Sequence[Holding] = (),
    now: datetime | None = None,
    preempt_after: timedelta | None = None,
    cut: Collection[str] = (),
    complete: int = 0,
    quotas: Mapping[str, Quota] | None = None,
) -> Decisions:
    """Place the jobs on the nodes, in the order of the queue, each completely or not at all.

    - A job that does not fit now, but would fit on empty nodes, keeps all nodes that could hold it.
      Jobs behind it do not get these nodes, because otherwise a large job could wait forever. Two
      kinds of jobs keep no nodes: a job with more slots than all online nodes together, and a job
      that waits for a quota of its project or a limit of its owner.
    - A job behind a waiting job may start on kept nodes (backfill). The backfilled job must leave
      before the earliest start of each job that keeps one of these nodes. Its time on the nodes is
      assumed to be its bound or, if the bound is missing or too long, twice its expected duration.
      The time to leave is added in both cases.
    - A backfilled job gives way to the jobs that keep its nodes, unless its bound is short enough
      and the earliest starts of these jobs do not depend on an estimate. Without preemption, no job
      is backfilled on an estimate; a job that is not preemptible never is.
    - If a job does not fit, no job behind it with the same demand is tried.
    - A job that keeps nodes preempts attempts of lower priority on nodes that no job ahead keeps,
      if the job fits once these attempts have ended.

    Args:
        jobs: the jobs, in the order of the queue.
        offers: the nodes.
        holdings: the holdings of attempts on the nodes.
        now: the current time. If None, nothing is backfilled or preempted.
        preempt_after: time that an attempt must run after its first step before it may be
            preempted; None for never.
        cut: ids of jobs after which `jobs` omits jobs of the same demand. After such a job is
            placed, jobs behind it are not decided, because they could overtake an omitted job.
        complete: number of jobs at the front of `jobs` that are decided even behind a cut, because
            no omitted job of equal demand is ahead of them.
        quotas: quotas by project; projects without quotas and limits are omitted.
    """
    turns = Turns(offers, holdings=holdings, now=now, preempt_after=preempt_after, quotas=quotas)
    for _ in turns.take(jobs, cut=cut, complete=complete):
        pass
    return turns.decisions


@dataclass(frozen=True)
class _Span:
    """A group of nodes that a demand may span; the group has the same nodes in every turn."""

    nodes: Sequence[str]
    """Names of the nodes."""
    unit: int
    divided: bool
    """Whether one of the nodes has parts of a GPU, which the demand cannot use."""

    def group(self, offers: Sequence[Offer]) -> NodeGroup:
        """Return the group of these nodes, without parts of GPUs that the demand cannot use."""
        if self.divided:
            offers = [offer.without_partitions() for offer in offers]
        return NodeGroup(offers, self.unit)


class Turns:
    """Turns of the jobs in a round: the remaining slots and the decisions so far."""

    def __init__(
        self,
        offers: Sequence[Offer],
        *,
        holdings: Sequence[Holding] = (),
        now: datetime | None = None,
        preempt_after: timedelta | None = None,
        quotas: Mapping[str, Quota] | None = None,
        on_estimates: bool | None = None,
    ) -> None:
        """Start a round, with the arguments of `decide`.

        `on_estimates` is whether jobs are backfilled on an estimate alone; by default, they are if
        `preempt_after` is given.
        """
        self._offers = offers
        self._by_name = {offer.node: offer for offer in offers}
        self._now = now
        self._preempt_after = preempt_after
        self._on_estimates = preempt_after is not None if on_estimates is None else on_estimates
        self.left = dict(self._by_name)
        """The nodes by name, without the slots of jobs that started in this round."""
        self.holdings = list(holdings)
        """The holdings of attempts, including jobs that started in this round."""
        self.decisions = Decisions()
        self._spans: dict[Demand, Sequence[_Span]] = {}
        self._open: dict[Demand, OpenNodes] = {}
        self._taken: list[tuple[Offer, Offer]] = []  # offers of a node before and after each start
        self._keepers: list[Keeper] = []
        self._kept_for: dict[str, str] = {}  # node -> first waiting job that keeps the node
        self._reasons: dict[Demand, str] = {}
        self._quotas = Quotas(quotas or {})

    @property
    def free_slots(self) -> int:
        """Number of free slots on nodes that no job ahead keeps."""
        left = self.left.values()
        return sum(len(offer.free) for offer in left if offer.node not in self._kept_for)

    def take(
        self, jobs: Sequence[QueuedJob], *, cut: Collection[str] = (), complete: int = 0
    ) -> Iterator[QueuedJob]:
        """Yield each job, then carry out its turn; stop after a cut, as `decide` describes."""
        is_cut = False
        for number, job in enumerate(jobs):
            if is_cut and number >= complete:
                return
            yield job
            is_cut |= self._place(job) and job.id in cut

    def would_place(self, job: QueuedJob) -> bool:
        """Return whether a job would start now on nodes that no job keeps; change nothing."""
        demand = job.demand
        if demand in self._reasons or not self._quotas.allows(job):
            return False
        return self._choose(demand) is not None

    def _place(self, job: QueuedJob) -> bool:
        """Carry out the turn of a job; return whether it starts."""
        demand, made = job.demand, self.decisions
        refusal = self._quotas.refusal(job)
        if refusal is not None:
            made.waiting[job.id] = refusal
            made.over_quota.add(job.id)
            return False
        if demand in self._reasons:
            made.waiting[job.id] = self._reasons[demand]
            if demand in made.keeping:
                self._quotas.keep(job)
            return False
        chosen = self._choose(demand)
        if chosen is None:
            eligible = self._eligible(demand)
            chosen = self._backfill(job, eligible)
        if chosen is None:
            self._reasons[demand] = made.waiting[job.id] = why_job_waits(
                demand, eligible, self._kept_for, offers=self._offers
            )
            self._keep(job, eligible)
            return False
        made.placed[job.id] = chosen
        self._quotas.hold(job)
        for share in chosen:
            before = self.left[share.node]
            after = self.left[share.node] = _take(before, job.name, share.slots)
            self._taken.append((before, after))
        shares = {share.node: share.slots for share in chosen}
        ends_at = self._after(job.ends_with(self._by_name[chosen[0].node]))
        if ends_at is not None:
            made.expected_ends[job.id] = ends_at
        self.holdings.append(Holding(shares, ends_at, ends_by=self._after(job.bound)))
        return True

    def _span(self, demand: Demand) -> Sequence[_Span]:
        if demand not in self._spans:
            self._spans[demand] = [
                _Span(
                    [offer.node for offer in group],
                    unit_on(demand, group),
                    demand.world_size > 1
                    and any(self._by_name[offer.node].partitions for offer in group),
                )
                for group in groups(demand, self._offers)
            ]
        return self._spans[demand]

    def _eligible(self, demand: Demand) -> list[NodeGroup]:
        """Return the groups of nodes that a demand may span, in their current state."""
        return [span.group([self.left[name] for name in span.nodes]) for span in self._span(demand)]

    def _choose(self, demand: Demand) -> tuple[NodeAllocation, ...] | None:
        """Return an allocation on nodes that no job ahead keeps; None if the job does not fit."""
        spans = self._span(demand)
        if demand not in self._open:
            self._open[demand] = OpenNodes(
                [span.nodes for span in spans],
                left=self.left,
                kept=self._kept_for,
                changes=self._taken,
            )
        groups = []
        for span, offers in zip(spans, self._open[demand].groups(), strict=True):
            group = span.group(offers)
            # Parts of GPUs are left out, so the order may have changed.
            groups.append(group.by_free() if span.divided else group)
        return choose(demand, groups)

    def _after(self, lasts: timedelta | None) -> datetime | None:
        return None if self._now is None or lasts is None else self._now + lasts

    def _backfill(
        self, job: QueuedJob, eligible: Sequence[NodeGroup]
    ) -> tuple[NodeAllocation, ...] | None:
        """Return an allocation on kept nodes and record it; None if the job would stay too long."""
        if not self._keepers:
            return None
        chosen, bound = None, job.bound
        if bound is not None:
            chosen = self._leaving_after(bound, job, eligible, closed=estimated(self._keepers))
        if chosen is None and self._on_estimates and job.preemptible:
            if bound is not None:
                chosen = self._leaving_after(bound, job, eligible)
            if chosen is None and job.lasts is not None:
                offers = (offer for group in eligible for offer in group.offers)
                unknown = {offer.node for offer in offers if job.lasts_with(offer) is None}
                chosen = self._leaving_after(CAUTION * job.lasts, job, eligible, closed=unknown)
            if chosen is not None:
                self.decisions.giving_way.add(job.id)
        if chosen is not None:
            nodes = {share.node for share in chosen}
            first = next(keeper for keeper in self._keepers if keeper.nodes & nodes)
            self.decisions.backfilled[job.id] = first.name
        return chosen

    def _leaving_after(
        self,
        time: timedelta,
        job: QueuedJob,
        eligible: Sequence[NodeGroup],
        *,
        closed: Set[str] = frozenset(),
    ) -> tuple[NodeAllocation, ...] | None:
        """Return an allocation outside `closed` nodes for a job that runs for `time`, or None.

        The job leaves before jobs ahead need the allocated nodes. The time to leave is added to
        `time`, because otherwise a series of short attempts would delay the start of a job ahead
        forever.
        """
        left_at = self._after(time + job.leaves_within)
        if left_at is None:
            return None
        closed = closed | needed_before(left_at, self._keepers)
        return choose(job.demand, [group.without(closed).by_free() for group in eligible])

    def _preempt(self, job: QueuedJob, able: Sequence[NodeGroup]) -> None:
        """Choose attempts to preempt for a job, on nodes that no job ahead keeps."""
        if self._now is None or self._preempt_after is None:
            return
        found = victims(
            [group.without(self._kept_for) for group in able],
            holdings=self.holdings,
            offers=self._by_name,
            job=job,
            now=self._now,
            running_since=self._now - self._preempt_after,
        )
        if not found:
            return
        self.decisions.victims[job.id] = found
        leaving, ends_at = {holding.attempt_id for holding in found}, self._now + LEAVES_WITHIN
        self.holdings = [
            replace(holding, ends_at=ends_at, ends_by=ends_at)
            if holding.attempt_id in leaving
            else holding
            for holding in self.holdings
        ]

    def _keep(self, job: QueuedJob, eligible: Sequence[NodeGroup]) -> None:
        able = [group for group in eligible if could_hold(job.demand, group)]
        if not able:
            return
        self._preempt(job, able)
        keeper = Keeper(
            job.name,
            job.demand,
            groups=able,
            holdings=tuple(self.holdings),
            offers=self._by_name,
            ahead=tuple(self._keepers),
        )
        self._keepers.append(keeper)
        self.decisions.keeping.add(job.demand)
        self._quotas.keep(job)
        for node in keeper.nodes:
            self._kept_for.setdefault(node, job.name)
        self._open.clear()


def _take(offer: Offer, name: str, slots: Collection[int]) -> Offer:
    holders = {**offer.holders, name: offer.holders.get(name, 0) + len(slots)}
    free = tuple(slot for slot in offer.free if slot not in slots)
    return replace(offer, free=free, holders=holders)
