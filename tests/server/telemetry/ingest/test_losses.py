"""The loss in lists, under any name that a program uses."""

from __future__ import annotations

import pytest

from server.core.context import Context
from tests.server.harness import Harness
from tests.server.reports import chunk, metric_lines, send


@pytest.mark.parametrize(
    ("names", "loss"),
    [
        (("loss",), 0.5),
        (("train_loss",), 0.5),
        (("training_loss", "val__loss"), 0.5),
        (("val__loss",), None),
    ],
)
def test_a_program_may_call_its_loss_as_other_tools_do(
    context: Context, harness: Harness, names: tuple[str, ...], loss: float | None
) -> None:
    harness.add_node()
    job_id, (supervisor,) = harness.launched()
    values = dict(zip(names, (0.5, 0.75), strict=False))
    lines = metric_lines(6, 6, **values).replace(b'"train/loss": 6.0, ', b"")
    send(context, supervisor, chunk("metrics", lines))
    assert harness.job(job_id).progress.loss == loss
