"""Limits of users in one decision: what counts, who waits, and who does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from server.cluster.placement.decide import Turns, decide
from server.cluster.placement.demand import Demand, Holding, QueuedJob
from server.cluster.placement.forecast import forecast
from server.cluster.placement.quotas import Quota, UserQuota, UserQuotas
from server.scheduler.elastic.grow_jobs import WaitingDemand, room_among
from tests.server.cluster.placement.cluster import offer

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(name: str, size: int, owner: str = "ada", project: str = "vision") -> QueuedJob:
    return QueuedJob(name, name, Demand(size), project=project, owner_id=owner)


UNLIMITED = UserQuota()


def quota(default: UserQuota = UNLIMITED, /, **users: UserQuota) -> Mapping[str, Quota]:
    return {"vision": Quota(users=UserQuotas(users, default))}


def test_a_user_at_a_limit_waits_and_others_pass() -> None:
    queue = [job("a", 2), job("b", 4), job("c", 1), job("d", 4, "bob"), job("e", 4, "bob")]
    limits = quota(UserQuota(max_slots=4), ada=UserQuota(held=1, running=1, max_slots=4))
    made = decide(queue, [offer("n", 16)], quotas=limits)
    assert set(made.placed) == {"a", "d"}
    assert made.waiting == {
        "b": "its owner holds 3 of 4 slots in project vision; needs 4",
        "c": "its owner holds 3 of 4 slots in project vision; waits behind b",
        "e": "its owner holds 4 of 4 slots in project vision; needs 4",
    }
    assert made.over_quota == {"b", "c", "e"}


def test_the_number_of_running_jobs_is_limited() -> None:
    queue = [job("a", 2), job("b", 1), job("c", 1), job("d", 1, project="speech")]
    limits = quota(ada=UserQuota(held=8, running=1, max_running=2))
    made = decide(queue, [offer("n", 16)], quotas=limits)
    assert set(made.placed) == {"a", "d"}
    assert made.waiting == {
        "b": "its owner runs 2 of 2 jobs in project vision",
        "c": "its owner runs 2 of 2 jobs in project vision; waits behind b",
    }


def test_a_job_above_the_limit_delays_no_job_of_its_owner() -> None:
    made = decide(
        [job("large", 5), job("small", 2)],
        [offer("n", 8)],
        quotas=quota(UserQuota(max_slots=4)),
    )
    assert set(made.placed) == {"small"}
    assert made.waiting == {"large": "needs 5, and its owner may hold 4 slots in project vision"}


def test_a_job_that_never_fits_into_the_project_delays_no_job_of_its_owner() -> None:
    users = UserQuotas({"ada": UserQuota(held=2, running=1, max_slots=8)})
    limits = {"vision": Quota(held=2, max_slots=4, users=users)}
    made = decide([job("large", 7), job("small", 2)], [offer("n", 8)], quotas=limits)
    assert set(made.placed) == {"small"}
    assert made.waiting == {"large": "needs 7, and project vision may hold 4 slots"}


def test_a_job_that_waits_for_its_owner_takes_nothing_from_the_project() -> None:
    limits = {
        "vision": Quota(
            held=2,
            max_slots=6,
            users=UserQuotas({"ada": UserQuota(held=2, running=1, max_slots=4)}),
        )
    }
    made = decide([job("a", 3), job("b", 4, "bob")], [offer("n", 8)], quotas=limits)
    assert set(made.placed) == {"b"}


def test_a_job_that_waits_for_slots_has_its_part_of_the_limits() -> None:
    queue = [job("large", 4), job("small", 1)]
    offers = [offer("n", 4, 2), offer("m", 1)]
    made = decide(queue, offers, quotas=quota(UserQuota(max_slots=4)))
    assert made.placed == {}
    assert made.waiting["small"] == (
        "its owner holds 0 of 4 slots in project vision, 4 more are for jobs ahead; needs 1"
    )
    made = decide(queue, offers, quotas=quota(UserQuota(max_running=1)))
    assert made.waiting["small"] == "its owner runs 0 of 1 jobs in project vision, 1 more is ahead"


def test_a_job_that_waits_for_its_owner_keeps_no_nodes_and_preempts_nothing() -> None:
    running = Holding(
        {"n": (0, 1)}, None, "low", "low", first_step_at=NOW - timedelta(hours=1), priority=-50
    )
    queue = [job("a", 4), job("b", 2, "bob")]
    limits = quota(ada=UserQuota(held=1, running=1, max_slots=4))
    made = decide(
        queue,
        [offer("n", 4, 2)],
        holdings=[running],
        now=NOW,
        preempt_after=timedelta(minutes=1),
        quotas=limits,
    )
    assert (set(made.placed), made.victims, made.keeping) == ({"b"}, {}, set())
    made = decide(
        queue, [offer("n", 4, 2)], holdings=[running], now=NOW, preempt_after=timedelta(minutes=1)
    )
    assert set(made.victims) == {"a"}, "without the limit it preempts"


def test_a_job_that_waits_for_its_owner_has_no_expected_start() -> None:
    queue = [job("a", 2), job("b", 2, "bob")]
    limits = quota(ada=UserQuota(held=4, running=1, max_slots=4))
    found = forecast(queue, [offer("n", 4)], [], now=NOW, quotas=limits)
    why = "its owner holds 4 of 4 slots in project vision; needs 2"
    assert (found.starts, found.unknown, found.waiting) == ({"b": NOW}, {"a": why}, {"a": why})


def test_jobs_grow_within_the_limit_of_their_owner() -> None:
    waits = [WaitingDemand(Demand(2), "vision", "ada")]
    limits = quota(
        ada=UserQuota(held=4, running=1, max_slots=4),
        bob=UserQuota(held=2, running=1, max_slots=3),
    )
    room = room_among(waits, [offer("n", 8)], limits)
    assert (room.left("vision", "ada"), room.left("vision", "bob")) == (0, 1)
    assert [len(each.free) for each in room.offers] == [8], "kept for no job beyond a limit"
    room = room.without("m", project="vision", owner_id="bob", slots=1)
    assert room.left("vision", "bob") == 0
    within = quota(ada=UserQuota(held=2, running=1, max_slots=8))
    room = room_among(waits, [offer("n", 8)], within)
    assert room.left("vision", "ada") == 0, "the rest is for the waiting job"
    assert room.left("vision", "eve") > 0
    assert [len(each.free) for each in room.offers] == [0]


def test_a_user_who_waits_for_a_limit_closes_the_project_to_nobody_else() -> None:
    users = UserQuotas({"ada": UserQuota(held=4, running=2, max_running=2)})
    limits = {"vision": Quota(held=4, max_slots=8, users=users)}
    room = room_among([WaitingDemand(Demand(2), "vision", "ada")], [offer("n", 8)], limits)
    assert room.left("vision", "bob") == 4


@dataclass
class Use:
    """The running jobs of each user in each project, and the limits."""

    default: UserQuota
    own: Mapping[str, UserQuota]
    running: dict[str, QueuedJob] = field(default_factory=dict)

    def held(self, project: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for each in self.running.values():
            if each.project == project:
                found[each.owner_id] += each.demand.slots
        return found

    def quotas(self) -> Mapping[str, Quota]:
        found = {}
        for project in PROJECTS:
            held = self.held(project)
            count = Counter(
                each.owner_id for each in self.running.values() if each.project == project
            )
            known = {
                user: replace(
                    self.own.get(user, self.default), held=held[user], running=count[user]
                )
                for user in self.own.keys() | held.keys()
            }
            users = UserQuotas(known, self.default)
            found[project] = Quota(held.total(), max_slots=12, users=users)
        return found


PROJECTS, USERS = ("vision", "speech"), ("ada", "bob", "eve")
LIMITS = st.builds(
    UserQuota,
    max_slots=st.none() | st.integers(0, 6),
    max_running=st.none() | st.integers(0, 3),
)
JOBS = st.lists(
    st.builds(
        job,
        st.uuids().map(str),
        st.integers(1, 7),
        st.sampled_from(USERS),
        st.sampled_from(PROJECTS),
    ).map(lambda each: replace(each, lasts=timedelta(seconds=30), preemptible=True)),
    max_size=8,
)


@given(
    LIMITS, st.dictionaries(st.sampled_from(USERS), LIMITS), st.lists(JOBS, max_size=5), st.data()
)
def test_no_schedule_exceeds_a_limit(
    default: UserQuota,
    own: Mapping[str, UserQuota],
    arrivals: Sequence[Sequence[QueuedJob]],
    data: st.DataObject,
) -> None:
    """Rounds with arrivals and ends between them; limits and owners of running jobs may change."""
    use = Use(default, own)
    waiting: list[QueuedJob] = []
    for arrived in arrivals:
        waiting += arrived
        before = use.quotas()
        offers = [offer(f"n{number}", 4) for number in range(4)]  # more free than any limit
        made = decide(waiting, offers, now=NOW, quotas=before)
        started = [each for each in waiting if each.id in made.placed]
        use.running |= {each.id: each for each in started}
        waiting = [each for each in waiting if each.id not in made.placed]
        for each in started:
            user = use.quotas()[each.project].of_user(each.owner_id)
            assert not user.is_exceeded, (each, user)
        found = forecast(waiting, offers, [], now=NOW, quotas=use.quotas())
        soon = [each for each in waiting if each.id in found.starts]
        then = replace(use, running=use.running | {each.id: each for each in soon})
        for each in soon:
            user = then.quotas()[each.project].of_user(each.owner_id)
            assert not user.is_exceeded, ("expected to start", each, user)
        ended = {name for name in use.running if data.draw(st.booleans())}
        use.running = {name: each for name, each in use.running.items() if name not in ended}
        if data.draw(st.booleans()) and use.running:  # a transfer may exceed a limit
            moved = data.draw(st.sampled_from(sorted(use.running)))
            owner = data.draw(st.sampled_from(USERS))
            use.running[moved] = replace(use.running[moved], owner_id=owner)
        use.default = data.draw(st.just(use.default) | LIMITS)


@given(LIMITS, JOBS, st.integers(1, 8))
def test_a_job_would_be_placed_exactly_where_a_round_places_it(
    default: UserQuota, queue: Sequence[QueuedJob], size: int
) -> None:
    limits, offers = quota(default), [offer("n", 8), offer("m", 4)]
    for present in Turns(offers, quotas=limits).take(queue):
        turns = Turns(offers, quotas=limits)
        for each in turns.take(queue):
            if each.id == present.id:
                break
        tried = replace(present, demand=Demand(size))
        whole = [tried if each.id == present.id else each for each in queue]
        placed = present.id in decide(whole, offers, quotas=limits).placed
        assert turns.would_place(tried) == placed
