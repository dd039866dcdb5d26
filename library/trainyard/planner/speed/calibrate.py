"""Fits coefficients for a kind of hardware to its runs; measures the accuracy of predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from trainyard.planner.results import MemoryEstimate
from trainyard.planner.speed.log_least_squares import fit_coefficients
from trainyard.planner.speed.quantities import StepWork
from trainyard.planner.speed.rates import (
    Accuracy,
    Calibration,
    MemoryRates,
    seconds_by_quantity,
)

FOLDS = 5
"""Number of parts into which the runs are divided. The runs of each part are predicted by a fit to
the other parts."""
MEMORY_SPREAD = 0.3
"""`SPREAD` for the coefficients of memory. The value is small, because the memory estimate follows
from shapes and needs little correction.
"""
MARGIN_FROM = 8
"""Minimum number of runs whose errors determine the margin of memory."""
MARGIN_BEYOND = 0.02
"""Margin in addition to the largest known error, because the next run may exceed that error."""
MemoryPart = Literal["fixed", "lasting", "gathered", "activations", "logits"]


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run on a kind of hardware."""

    work: StepWork
    """Work of one step."""
    memory: MemoryEstimate
    """Memory as the planner estimated it from the spec."""
    step_seconds: float | None = None
    """Measured time of a step; None if there were too few steps."""
    peak_bytes: int | None = None
    """Measured memory peak of the fullest rank; None if unknown."""
    available_bytes: int | None = None
    """Memory of a slot; None if unknown."""
    out_of_memory: bool = False
    """Whether the run ran out of memory."""


def calibrate(prior: Calibration, runs: Sequence[MeasuredRun]) -> Calibration:
    """Return the coefficients that fit the runs best, with their accuracy.

    Args:
        prior: coefficients from the data sheet.
        runs: finished runs on the hardware, in any order.
    """
    if not runs:
        return prior
    folds = min(FOLDS, len(runs))
    pairs: list[tuple[MeasuredRun, Calibration]] = []
    for fold in range(folds):
        others = [run for index, run in enumerate(runs) if index % folds != fold]
        fitted = _fit(prior, others)
        pairs += ((run, fitted) for run in runs[fold::folds])
    margin = _margin(pairs)
    with_margin = [(run, _with_margin(fitted, margin)) for run, fitted in pairs]
    found = _fit(prior, runs)
    return found.model_copy(
        update={
            "runs": len(runs),
            "memory_margin": margin,
            "accuracy": _accuracy(with_margin),
        }
    )


def predicted_seconds(calibration: Calibration, work: StepWork) -> float:
    """Return the predicted time of a step."""
    return sum(seconds_by_quantity(work, calibration.seconds).values())


def predicted_bytes(calibration: Calibration, memory: MemoryEstimate) -> float:
    """Return the predicted memory peak of the fullest rank."""
    return sum(_memory_parts(memory, _rates_of(calibration)).values())


def is_said_to_fit(calibration: Calibration, memory: MemoryEstimate, available: int) -> bool:
    """Return whether the predicted peak, with its margin, fits into the memory of a slot."""
    return calibration.memory_margin * predicted_bytes(calibration, memory) <= available


def _with_margin(calibration: Calibration, margin: float) -> Calibration:
    return calibration.model_copy(update={"memory_margin": margin})


def _fit(prior: Calibration, runs: Sequence[MeasuredRun]) -> Calibration:
    timed = [
        (partial(seconds_by_quantity, run.work), run.step_seconds)
        for run in runs
        if run.step_seconds
    ]
    weighed = [
        (partial(_memory_parts, run.memory), float(run.peak_bytes))
        for run in runs
        if run.peak_bytes
    ]
    seconds, memory = prior.seconds, _rates_of(prior)
    if timed:
        seconds = fit_coefficients(timed, seconds)
    if weighed:
        memory = fit_coefficients(weighed, memory, common_spread=0.0, spread=MEMORY_SPREAD)
    rates = MemoryRates(**dict(memory.items()))
    return prior.model_copy(update={"seconds": dict(seconds), "memory": rates})


def _rates_of(calibration: Calibration) -> dict[MemoryPart, float]:
    rates = calibration.memory
    return {
        "fixed": rates.fixed,
        "lasting": rates.lasting,
        "gathered": rates.gathered,
        "activations": rates.activations,
        "logits": rates.logits,
    }


def _memory_parts(
    memory: MemoryEstimate, rates: Mapping[MemoryPart, float]
) -> dict[MemoryPart, float]:
    lasting = memory.weights + memory.gradients + memory.optimizer_states
    return {
        "fixed": rates["fixed"],
        "lasting": rates["lasting"] * lasting,
        "gathered": rates["gathered"] * memory.gathered,
        "activations": rates["activations"] * memory.activations,
        "logits": rates["logits"] * memory.logits,
    }


def _margin(pairs: Sequence[tuple[MeasuredRun, Calibration]]) -> float:
    """Return the factor that raises all predictions above the measured peaks; 1 with few runs."""
    over = [
        run.peak_bytes / predicted_bytes(fitted, run.memory)
        for run, fitted in pairs
        if run.peak_bytes
    ]
    if len(over) < MARGIN_FROM:
        return 1.0
    return max(1.0, max(over) + MARGIN_BEYOND)


def _accuracy(pairs: Sequence[tuple[MeasuredRun, Calibration]]) -> Accuracy:
    steps = sorted(
        abs(predicted_seconds(fitted, run.work) / run.step_seconds - 1)
        for run, fitted in pairs
        if run.step_seconds
    )
    peaks = sorted(
        abs(predicted_bytes(fitted, run.memory) / run.peak_bytes - 1)
        for run, fitted in pairs
        if run.peak_bytes
    )
    said = [run for run, fitted in pairs if _said(fitted, run)]
    return Accuracy(
        step_median=_at(steps, 0.5),
        step_p95=_at(steps, 0.95),
        memory_median=_at(peaks, 0.5),
        memory_p95=_at(peaks, 0.95),
        fits_judged=len(said),
        fits_wrong=sum(map(_did_not_fit, said)),
    )


def _said(fitted: Calibration, run: MeasuredRun) -> bool:
    known = run.available_bytes is not None and (run.out_of_memory or run.peak_bytes is not None)
    return known and is_said_to_fit(fitted, run.memory, run.available_bytes or 0)


def _did_not_fit(run: MeasuredRun) -> bool:
    return run.out_of_memory or (run.peak_bytes or 0) > (run.available_bytes or 0)


def _at(values: Sequence[float], share: float) -> float | None:
    """Return a quantile: the smallest value such that `share` of the values are not above it."""
    return values[math.ceil(share * len(values)) - 1] if values else None
