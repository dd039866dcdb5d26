"""A fault: what it does to a running job, on which cluster, and what becomes of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.case import STRIKE_AT, Case, Predicted
from tests.chaos.cluster import LEASE_SECONDS, PLAIN, Setup

AWAY = 8.0
"""Seconds for which a part is away: more than a supervisor's longest pause between two tries."""
LONG = LEASE_SECONDS + 5
"""Seconds after which a lease would have run out."""

Strike = Callable[[Case], None]


@dataclass(frozen=True)
class Fault:
    """One kind of fault, or one combination of several."""

    name: str
    text: str
    """What happens."""
    strike: Strike
    predicted: Predicted
    job: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of the job's spec that differ, by section."""
    setup: Setup = PLAIN
    """The cluster that it needs."""
    after_step: int = STRIKE_AT
    """Step after which it strikes; 0: at the submission."""


FAULTS: dict[str, Fault] = {}


def fault(
    text: str,
    *,
    attempts: int = 1,
    retries_used: int = 0,
    same_layout: bool = True,
    setup: Setup = PLAIN,
    **job: Mapping[str, Any],
) -> Callable[[Strike], Strike]:
    """Register a fault under the name of its function.

    Args:
        text: what happens.
        attempts: attempts of the job in the end.
        retries_used: retries of its budget that are used up.
        same_layout: whether all attempts have the layout of the first.
        setup: the cluster that it needs.
        job: sections of the job's spec.
    """

    def register(strike: Strike) -> Strike:
        predicted = Predicted(
            range(attempts, attempts + 1), retries_used=retries_used, same_layout=same_layout
        )
        name = strike.__name__
        FAULTS[name] = Fault(name, text, strike, predicted, job, setup)
        return strike

    return register
