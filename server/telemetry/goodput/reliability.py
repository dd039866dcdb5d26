"""Published estimates of reliability, as pure functions. All times of a call share one unit.

The mean time to failure (MTTF) refers to whole jobs, not to nodes: it is the total time of the
attempts divided by the number of failures.
"""

from __future__ import annotations

import math

import numpy as np

from trainyard.protocol.goodput import MeanTimeToFailure

CONFIDENCE = 0.95
"""Confidence of each of the two bounds of a mean time to failure. The mean lies between the bounds
with a confidence of 90 %.
"""
HALVINGS = 60
"""Number of bisection steps in the search for a quantile, enough for the precision of a float."""


def mean_time_to_failure(seconds: float, failures: int) -> MeanTimeToFailure:
    """Return the mean time to failure and its bounds, from the total time of the attempts."""
    return MeanTimeToFailure(
        failures=failures,
        mttf_seconds=seconds / failures if failures else None,
        mttf_lower_seconds=mttf_lower(seconds, failures) if seconds else None,
        mttf_upper_seconds=mttf_upper(seconds, failures),
    )


def mttf_lower(time: float, failures: int) -> float:
    """Return the lower bound of the MTTF with the confidence `CONFIDENCE`.

    Failures at a constant rate within a given time follow the Poisson distribution. The exact
    bounds of the rate are quantiles of the Gamma distribution (Garwood 1936, "Fiducial limits for
    the Poisson distribution"). Without a failure, the bound is about one third of `time`.

    Args:
        time: total time in which the failures were counted.
        failures: number of failures, 0 or more.
    """
    return time / _gamma_quantile(CONFIDENCE, failures + 1)


def mttf_upper(time: float, failures: int) -> float | None:
    """Return the upper bound of the MTTF with `CONFIDENCE`; None without a failure."""
    return time / _gamma_quantile(1 - CONFIDENCE, failures) if failures else None


def expected_ettr(
    *, mttf: float, interval: float, stall: float, startup: float, queue: float
) -> float:
    """Return the expected effective training time ratio (ETTR) of a long run, 0 to 1.

    Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters"
    (2024, arXiv 2410.21680): each failure costs a start-up u0 and half of the interval dt between
    two saves, and each save costs a stall w. The productive share of the scheduled time is

        (1 - r (u0 + dt / 2)) / (1 + w / dt)

    where r = 1 / MTTF is the failure rate of all nodes of the job. Each failure also costs a wait q
    for slots, in which the job could have run; the wait adds a factor 1 / (1 + r q).

    Args:
        mttf: mean time to failure of the job, more than 0.
        interval: training time between two saves, more than 0.
        stall: time for which a save holds up training.
        startup: time from the placement to the first step.
        queue: wait for slots after a failure.
    """
    rate = 1 / mttf
    scheduled = (1 - rate * (startup + interval / 2)) / (1 + stall / interval)
    return max(scheduled, 0.0) / (1 + rate * queue)


def daly_interval(stall: float, mttf: float) -> float:
    """Return the best training time between two saves by Daly's higher-order estimate.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps"
    (2006), equation 37; its first term is Young's formula, sqrt(2 x stall x mttf).

    Args:
        stall: time for which a save holds up training, more than 0.
        mttf: mean time to failure.
    """
    if stall >= 2 * mttf:
        return mttf
    ratio = stall / (2 * mttf)
    return math.sqrt(2 * stall * mttf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall


def _gamma_quantile(probability: float, shape: int) -> float:
    """Return a quantile of the Gamma distribution with an integer shape and scale 1."""
    terms = np.arange(shape)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(terms[1:]))))

    def is_below(x: float) -> bool:
        # P(value <= x) is the probability of `shape` or more events, Poisson with mean x.
        fewer = np.exp(terms * math.log(x) - x - factorials).sum()
        return bool(1 - fewer < probability)

    low, high = 0.0, 1.0
    while is_below(high):
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high
