"""Runs a row of the numerics table and its reference through the trainer, and compares them."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.trainer.numerics.rows import SPEC, Row
from tests.trainer.runs import Attempt, SmallJob
from trainyard.spec.layout import Layout

STEPS = SPEC["training"]["steps"]
LOSS_TOLERANCE = 1e-4
NORM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Course:
    """The measurements of a run, step by step."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]


@dataclass(frozen=True)
class Errors:
    """The largest relative errors over all steps."""

    loss: float
    norm: float

    @property
    def within(self) -> bool:
        """Whether both are within their tolerance."""
        return self.loss <= LOSS_TOLERANCE and self.norm <= NORM_TOLERANCE


def measure(row: Row, *, steps: int = STEPS) -> Errors:
    """Train a row's layout and one rank in float32, and compare their courses."""
    expected = _reference(json.dumps(row.computes, sort_keys=True), steps)
    course = train({**row.sections, "parallelism": row.parallelism}, row.layout, steps=steps)
    assert expected.losses[-1] < expected.losses[0] - 0.1, "the reference must learn"
    return errors_of(course, expected)


def errors_of(course: Course, expected: Course) -> Errors:
    """Compare two courses of equal length."""
    return Errors(
        loss=_relative(course.losses, expected.losses),
        norm=_relative(course.norms, expected.norms),
    )


def train(sections: dict[str, dict[str, Any]], layout: Layout, *, steps: int) -> Course:
    """Train the job of the table on a layout like a launch, and return its measurements."""
    sections = {**sections, "training": {**sections.get("training", {}), "steps": steps}}
    with tempfile.TemporaryDirectory() as folder:
        job = SmallJob(Path(folder), SPEC).changed(Path(folder), **sections)
        job.write_documents()
        return course_of(job.launch(1, layout), steps=steps)


def course_of(attempt: Attempt, *, steps: int) -> Course:
    """Return an attempt's records of its first steps."""
    losses, norms = attempt.values("train/loss"), attempt.values("train/grad_norm")
    trained = range(1, steps + 1)
    return Course(tuple(losses[s] for s in trained), tuple(norms[s] for s in trained))


@cache
def _reference(computes: str, steps: int) -> Course:
    return train(json.loads(computes), Layout(), steps=steps)


def _relative(values: tuple[float, ...], expected: tuple[float, ...]) -> float:
    return max(abs(v - e) / abs(e) for v, e in zip(values, expected, strict=True))
