"""A change of layout adds only rounding: within its bound in float32, none in float64."""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.trainer.numerics.rows import SPEC
from tests.trainer.runs import Attempt, Meddling, SmallJob
from trainyard.spec.layout import Layout
from trainyard.training.rounding import AT_ONE, MAX_DIFFERENCE, loss_bound

SAVED, SPIKE, LAST = 3, 5, 12
"""Steps: of the checkpoint, of the gradients with a norm of 41, and the last one."""
LAYOUTS = (Layout(dp_shard=2), Layout(dp_shard=3), Layout(tp=2), Layout(cp=2), Layout(pp=2))


@cache
def courses(*, in_float64: bool) -> dict[Layout, tuple[list[float], list[float]]]:
    """Losses and norms after a resume of one rank's checkpoint on each layout, one rank's too."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        job = SmallJob(folder, SPEC).changed(
            folder,
            training={**SPEC["training"], "steps": LAST, "max_grad_norm": None},
        )
        job.launch(1, Layout(), Meddling(stop_after=SAVED - 1, in_float64=in_float64))
        (saved,) = job.committed().values()
        assert saved.train_state.step == SAVED
        return {
            layout: course(
                job.launch(number, layout, Meddling(in_float64=in_float64), resume=saved)
            )
            for number, layout in enumerate((Layout(), *LAYOUTS), start=2)
        }


def course(attempt: Attempt) -> tuple[list[float], list[float]]:
    losses, norms = attempt.values("train/loss"), attempt.values("train/grad_norm")
    steps = range(SAVED + 1, LAST + 1)
    return [losses[step] for step in steps], [norms[step] for step in steps]


def differences(layout: Layout, *, in_float64: bool) -> list[float]:
    found = courses(in_float64=in_float64)
    return [
        abs(loss - of_one) / of_one
        for loss, of_one in zip(found[layout][0], found[Layout()][0], strict=True)
    ]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_change_of_layout_is_exact_in_float64(layout: Layout) -> None:
    assert max(differences(layout, in_float64=True)) < 1e-12


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_change_of_layout_is_within_the_bound_in_float32(layout: Layout) -> None:
    norms = list(accumulate(courses(in_float64=False)[Layout()][1], max))
    assert norms[SPIKE - SAVED - 1] > 30, "the course has a spike"
    bounds = [
        loss_bound("float32", grad_norm=norm, steps=steps)
        for steps, norm in enumerate(norms, start=1)
    ]
    found = differences(layout, in_float64=False)
    assert all(each <= bound for each, bound in zip(found, bounds, strict=True)), found
    assert max(found) > 1e-12 or layout.pp == 2, "float32 rounds where sums change their order"


def test_the_bound_grows_with_norm_and_steps_and_ends() -> None:
    assert loss_bound("float32", grad_norm=0.3, steps=1) == AT_ONE["float32"]
    assert loss_bound("float32", grad_norm=float("nan"), steps=10) == AT_ONE["float32"]
    assert loss_bound("float32", grad_norm=40.0, steps=1) == pytest.approx(4e-4)
    assert loss_bound("float32", grad_norm=1.0, steps=235) == pytest.approx(2.35e-4)
    assert loss_bound("bfloat16", grad_norm=1e9, steps=1) == MAX_DIFFERENCE
