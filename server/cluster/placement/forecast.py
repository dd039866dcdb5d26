"""Pure functions for the expected starts of waiting jobs.

They simulate a placement round at each expected end of an attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from server.cluster.placement.decide import Turns
from server.cluster.placement.demand import Holding, Offer, QueuedJob
from server.cluster.placement.fit import fits
from server.cluster.placement.quotas import Quota

FORECAST_JOBS = 50
"""Maximum number of jobs with a forecast, from the head of the queue; each job may cost a simulated
round."""
FORECAST_ENDS = 32
"""Maximum number of expected ends that are examined, the earliest first; each end costs a simulated
round."""
TOO_FAR_BACK = f"more than {FORECAST_JOBS} jobs are ahead"
TOO_LARGE = "the online nodes could not hold it even if they were empty"
UNKNOWN_END = "the jobs that hold the slots, or jobs ahead, have no known end"
NOT_SOON = "it does not start at any of the expected ends that were examined"


@dataclass(frozen=True)
class Forecast:
    """Forecast for the waiting jobs."""

    starts: Mapping[str, datetime]
    """Expected starts by job id; jobs without an expected start are in `unknown`."""
    waiting: Mapping[str, str]
    """Reason why a job does not start now, by job id."""
    unknown: Mapping[str, str]
    """Reason why a job has no expected start, by job id."""
    backfilled: Mapping[str, str]
    """Name of the job that a backfilled job overtakes, by id of the backfilled job."""


def forecast(
    jobs: Sequence[QueuedJob],
    offers: Sequence[Offer],
    holdings: Iterable[Holding],
    *,
    now: datetime,
    quotas: Mapping[str, Quota] | None = None,
    on_estimates: bool = True,
    has_time: Callable[[], bool] = lambda: True,
) -> Forecast:
    """Return the expected starts of jobs, from simulated rounds at `now` and at each expected end.

    A job of unknown duration counts as running forever, so other jobs may start earlier than
    forecast. A job may start later than forecast if jobs of higher priority arrive, attempts end
    later than expected, or nodes leave. A job that waits for a quota or a limit of its owner has no
    expected start, because their use is not forecast.

    Args:
        jobs: the first jobs of the queue, in its order.
        offers: the nodes that take new work, in their current state.
        holdings: the holdings of attempts on these nodes.
        now: time of the first round.
        quotas: quotas by project; projects without quotas and limits are omitted.
        on_estimates: whether jobs are backfilled on an estimate alone.
        has_time: called before each round except the first; the forecast ends if it returns False.
    """
    starts: dict[str, datetime] = {}
    backfilled: dict[str, str] = {}
    waiting: Mapping[str, str] = {}
    over_quota: dict[str, str] = {}
    left = list(jobs)
    free: Sequence[Offer] = offers
    held: Sequence[Holding] = list(holdings)
    moment, rounds, unseen = now, 0, False
    while left:
        free = _freed(free, [holding for holding in held if _has_ended(holding, moment)])
        held = [holding for holding in held if not _has_ended(holding, moment)]
        # The jobs that remain after the first round fit into the quotas together.
        limits = quotas if rounds == 0 else None
        turns = Turns(free, holdings=held, now=moment, quotas=limits, on_estimates=on_estimates)
        made = turns.decisions
        for _ in turns.take(left):
            pass
        if rounds == 0:
            waiting = made.waiting
            over_quota = {job_id: waiting[job_id] for job_id in made.over_quota}
        starts |= dict.fromkeys(made.placed, moment)
        backfilled |= made.backfilled
        free, held = list(turns.left.values()), turns.holdings
        left = [job for job in left if job.id not in made.placed.keys() | over_quota]
        ends = [holding.ends_at for holding in held if holding.ends_at is not None]
        if not ends:
            break
        rounds += 1
        unseen = rounds > FORECAST_ENDS or not has_time()
        if unseen:
            break
        moment = min(ends)
    empty = [replace(offer, free=tuple(sorted(offer.indices))) for offer in offers]
    why = NOT_SOON if unseen else UNKNOWN_END
    unknown = {job.id: why if fits(job.demand, empty) else TOO_LARGE for job in left}
    return Forecast(starts, waiting, unknown | over_quota, backfilled)


def _has_ended(holding: Holding, moment: datetime) -> bool:
    return holding.ends_at is not None and holding.ends_at <= moment


def _freed(offers: Iterable[Offer], ended: Iterable[Holding]) -> list[Offer]:
    """Return the offers in which all still offered slots of ended attempts are free."""
    slots: dict[str, set[int]] = {}
    for holding in ended:
        for node, held in holding.shares.items():
            slots.setdefault(node, set()).update(held)
    return [
        replace(offer, free=tuple(sorted({*offer.free, *slots[offer.node]} & offer.indices)))
        if offer.node in slots
        else offer
        for offer in offers
    ]
