"""Errors of predictions for hidden configurations, after learning from the others."""

from __future__ import annotations

import itertools
import os
import random
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.planner_accuracy.configurations import Configuration
from benchmarks.planner_accuracy.measure import Measurement
from benchmarks.report import percentile
from trainyard.planner.memory import estimate_memory
from trainyard.planner.speed.calibrate import (
    MeasuredRun,
    calibrate,
    is_said_to_fit,
    predicted_bytes,
    predicted_seconds,
)
from trainyard.planner.speed.quantities import NodeKind
from trainyard.planner.speed.rates import Calibration, sheet_rates
from trainyard.planner.speed.step_work import step_work

HIDDEN = 0.3
"""Share of the configurations that a split hides."""
SPLITS = 40
"""Random splits; figures are over the hidden configurations of all of them."""
BUDGETS = tuple(share / 20 for share in range(1, 20))
"""Quantiles of all measured peaks, used as the memory of a slot."""
MIB = 2**20


@dataclass(frozen=True)
class Hidden:
    """A hidden configuration with its prediction."""

    configuration: Configuration
    run: MeasuredRun
    seconds: float
    """Predicted time of a step."""
    peak: float
    """Predicted bytes."""
    calibration: Calibration


@dataclass(frozen=True)
class Errors:
    """Errors over hidden configurations."""

    step_median: float
    step_p95: float
    memory_median: float
    memory_p95: float
    order: float
    """Kendall's tau of a job's layouts: concordant minus discordant pairs, of all pairs."""
    pairs: int
    false_fits: float
    """Share of wrong predictions among budgets predicted to suffice."""
    fits: int
    """Number of predictions that a budget suffices for a configuration."""


def measured_run(
    configuration: Configuration, measured: Measurement, *, resident: bool = False
) -> MeasuredRun:
    """Return a measured configuration in the form of the calibration.

    Args:
        configuration: the configuration.
        measured: its measurement; the shortest step counts, as the least disturbed one.
        resident: whether to use resident memory instead of tensors.
    """
    spec, layout = configuration.spec, configuration.spec.layout()
    partition = spec.batch_partition(layout)
    return MeasuredRun(
        work=step_work(spec, layout, partition=partition, node=this_node()),
        memory=estimate_memory(spec, layout, partition),
        step_seconds=measured.shortest,
        peak_bytes=measured.resident if resident else measured.tensors,
    )


def this_node() -> NodeKind:
    """Return the description of this machine."""

    cores = os.cpu_count() or 1
    return NodeKind("cpu", "this machine", max(4, cores), cores)


def evaluate(
    runs: Mapping[Configuration, MeasuredRun], *, resident: bool, splits: int = SPLITS
) -> Errors:
    """Return the errors over many random splits.

    Args:
        runs: the measured runs.
        resident: whether their peaks are resident memory; otherwise of tensors, without a process.
        splits: number of random splits.
    """
    names, dice = list(runs), random.Random(0)
    hidden: list[list[Hidden]] = []
    for _ in range(splits):
        held_out = set(dice.sample(range(len(names)), round(HIDDEN * len(names))))
        learned = [runs[name] for index, name in enumerate(names) if index not in held_out]
        calibration = calibrate(_prior(resident), learned)
        hidden.append([_hide(names[i], runs[names[i]], calibration) for i in sorted(held_out)])
    found = list(itertools.chain.from_iterable(hidden))
    steps = [abs(each.seconds / (each.run.step_seconds or 1) - 1) for each in found]
    peaks = [abs(each.peak / (each.run.peak_bytes or 1) - 1) for each in found]
    agreed, pairs = _order(hidden)
    fits, wrong = _fits(runs, found)
    return Errors(
        step_median=statistics.median(steps),
        step_p95=percentile(steps, 0.95),
        memory_median=statistics.median(peaks),
        memory_p95=percentile(peaks, 0.95),
        order=agreed / max(pairs, 1),
        pairs=pairs,
        false_fits=wrong / max(fits, 1),
        fits=fits,
    )


def _prior(resident: bool) -> Calibration:
    sheet = sheet_rates("cpu", this_node().name)
    assert sheet is not None, "CPUs have coefficients"
    if resident:
        return sheet
    return sheet.model_copy(update={"memory": sheet.memory.model_copy(update={"fixed": MIB})})


def _hide(configuration: Configuration, run: MeasuredRun, calibration: Calibration) -> Hidden:
    return Hidden(
        configuration,
        run,
        predicted_seconds(calibration, run.work),
        predicted_bytes(calibration, run.memory),
        calibration,
    )


def _order(splits: Sequence[Sequence[Hidden]]) -> tuple[int, int]:
    """Return concordant minus discordant pairs of layouts of one job, and the number of pairs."""
    agreed = pairs = 0
    for hidden in splits:
        by_job: dict[str, list[Hidden]] = defaultdict(list)
        for each in hidden:
            by_job[each.configuration.job].append(each)
        for own in by_job.values():
            for one, other in itertools.combinations(own, 2):
                measured = (one.run.step_seconds or 0) < (other.run.step_seconds or 0)
                agreed += 1 if (one.seconds < other.seconds) == measured else -1
                pairs += 1
    return agreed, pairs


def _fits(runs: Mapping[Configuration, MeasuredRun], hidden: Sequence[Hidden]) -> tuple[int, int]:
    """Return how often a budget was predicted to suffice, and how often it does not."""
    peaks = [float(run.peak_bytes or 0) for run in runs.values()]
    fits = wrong = 0
    for budget in (percentile(peaks, share) for share in BUDGETS):
        for each in hidden:
            if is_said_to_fit(each.calibration, each.run.memory, int(budget)):
                fits += 1
                wrong += (each.run.peak_bytes or 0) > budget
    return fits, wrong


def better(one: Measurement, other: Measurement) -> Measurement:
    """Return the combined figures of two rounds, each from the less disturbed one."""
    return replace(
        one,
        wall=min(one.wall, other.wall),
        shortest=min(one.shortest, other.shortest),
        processor=min(one.processor, other.processor),
        steps=one.steps + other.steps,
    )
