"""Predicts step time and memory of layouts after learning from measured ones.

All configurations run alternately on CPU ranks of this machine, in several rounds. Then the planner
learns from a random 70 % of them and predicts the other 30 %; the errors are those of 40 such
splits.

    python -m benchmarks.planner_accuracy > benchmarks/results/planner-accuracy.jsonl
    python -m benchmarks.planner_accuracy --read benchmarks/results/planner-accuracy.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.planner_accuracy.configurations import Configuration, configurations
from benchmarks.planner_accuracy.evaluate import SPLITS, Errors, better, evaluate, measured_run
from benchmarks.planner_accuracy.measure import Measurement, measure
from benchmarks.report import emit

NAME = "planner_accuracy"
MEMORY_MEDIAN, MEMORY_P95, ORDER, FALSE_FITS = 0.10, 0.20, 0.7, 0.01
LEAST = 60
"""Minimum of configurations for the figures."""


def main(words: list[str]) -> int:
    """Measure, or read measurements, and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="few configurations, no target")
    parser.add_argument("--read", type=Path, help="lines of a former run, instead of measuring")
    parser.add_argument("--splits", type=int, default=SPLITS, help="random splits")
    arguments = parser.parse_args(words)
    wanted = configurations(few=arguments.check)
    if arguments.read is not None:
        measured = _read(arguments.read, wanted)
    else:
        measured = _measure(wanted, 1 if arguments.check else arguments.rounds)
    return 0 if _judge(measured, arguments.splits, with_targets=not arguments.check) else 1


def _measure(wanted: list[Configuration], rounds: int) -> dict[Configuration, Measurement]:
    found: dict[Configuration, Measurement] = {}
    for number in range(1, rounds + 1):
        for each in wanted:
            new = measure(each.spec)
            found[each] = better(found[each], new) if each in found else new
            if number == rounds:
                _print_measurement(each, found[each])
    return found


def _print_measurement(configuration: Configuration, measured: Measurement) -> None:
    emit(
        f"{NAME}_configuration",
        figure=measured.shortest,
        unit="s a step, the shortest",
        packages=("torch",),
        configuration=configuration.name,
        **asdict(measured),
    )


def _read(path: Path, wanted: list[Configuration]) -> dict[Configuration, Measurement]:
    fields = Measurement.__dataclass_fields__
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = {
        line["configuration"]: Measurement(**{name: line[name] for name in fields})
        for line in lines
        if line["benchmark"] == f"{NAME}_configuration"
    }
    return {each: found[each.name] for each in wanted if each.name in found}


def _judge(measured: dict[Configuration, Measurement], splits: int, *, with_targets: bool) -> bool:
    passed = not with_targets or len(measured) >= LEAST
    for resident in (False, True):
        runs = {
            each: measured_run(each, taken, resident=resident) for each, taken in measured.items()
        }
        errors = evaluate(runs, resident=resident, splits=splits)
        # Resident memory is mostly torch's own: its errors are only informative.
        passed &= _print(
            errors, len(measured), resident=resident, with_targets=with_targets and not resident
        )
    return passed


def _print(errors: Errors, count: int, *, resident: bool, with_targets: bool) -> bool:
    memory = "resident memory" if resident else "tensors"
    figures: list[tuple[str, float, float | None, bool]] = [
        (f"median error of the peak of {memory}", errors.memory_median, MEMORY_MEDIAN, False),
        (f"p95 error of the peak of {memory}", errors.memory_p95, MEMORY_P95, False),
        (f"false fits of {memory}", errors.false_fits, FALSE_FITS, False),
    ]
    if not resident:
        figures += [
            ("Kendall's tau of the layouts of a job", errors.order, ORDER, True),
            ("median error of the step time", errors.step_median, None, False),
            ("p95 error of the step time", errors.step_p95, None, False),
        ]
    passed = True
    for unit, figure, target, at_least in figures:
        passed &= emit(
            NAME,
            figure=figure,
            unit=unit,
            target=target if with_targets else None,
            at_least=at_least,
            packages=("torch",),
            configurations=count,
            pairs=errors.pairs,
            fits=errors.fits,
        )
    return passed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
