"""A script with TensorBoard's writer, and no line about us, gets charts."""

from __future__ import annotations

import sys
import textwrap

import pytest

from tests.e2e.control_plane import ONE_RANK, ControlPlane, finished
from trainyard.client.sdk import Client
from trainyard.protocol.states import JobState

pytestmark = pytest.mark.timeout(400)
STEPS = 30
SCRIPT = f"""
import os
from torch.utils.tensorboard import SummaryWriter

folder = os.environ["TENSORBOARD_LOGGING_DIR"]
training, evaluation = SummaryWriter(folder), SummaryWriter(os.path.join(folder, "eval"))
for step in range(1, {STEPS} + 1):
    training.add_scalar("train/loss", 1 / step, step)
    training.add_text("note", "words", step)
    if step % 10 == 0:
        evaluation.add_scalar("accuracy (top 5)", step / 100, step)
training.close()
evaluation.close()
"""


def test_event_files_of_a_script_become_charts(plane: ControlPlane, yard: Client) -> None:
    program = {
        "command": [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        "launcher": "command",
    }
    spec = {"name": "event-files", "program": program, "resources": ONE_RANK}
    job = finished(yard, yard.submit(spec).id)
    assert job.state == JobState.SUCCEEDED, job.reason
    assert job.progress.step == STEPS
    view = yard.metrics(job.id, names=("train/loss", "eval/accuracy (top 5)"))
    assert [*view.names] == ["eval/accuracy (top 5)", "train/loss"]
    loss, accuracy = sorted(view.curves, key=lambda curve: curve.name, reverse=True)
    assert loss.steps == [*range(1, STEPS + 1)]
    assert loss.last == pytest.approx([1 / step for step in range(1, STEPS + 1)])
    assert accuracy.steps == [10, 20, 30]
    assert accuracy.last == pytest.approx([0.1, 0.2, 0.3])
