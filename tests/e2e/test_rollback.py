"""A text that really breaks the model: the guard ends the attempt, and a rollback recovers it.

The custom model divides by zero on a character (`fragile_model/fragile.py`), and the text has such
characters in known sequences. Everything else is ordinary.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.control_plane import (
    ONE_RANK,
    TEXT,
    ControlPlane,
    Follower,
    assert_told_once,
    course,
    finished,
    spec,
)
from trainer.data.windows import TrainingOrder
from trainyard.client.sdk import Client
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.rest.event_data import RolledBack

pytestmark = pytest.mark.timeout(400)
SEQ_LEN = 64
STEPS = 12
BATCH = 16
BREAKING = {"~": 100, "^": 150}
"""Position in the stream of the sequence that holds each character: steps 7 and 10."""
WINDOW = (96, 128)
"""Values are logged at every second step: 6 was good, 8 was not."""


@pytest.fixture(scope="module")
def text(plane: ControlPlane) -> str:
    """Write the text and the model's code below a storage root; return the text's place."""
    code = Path(__file__).with_name("fragile_model")
    shutil.copytree(code, plane.folders.data / "fragile", dirs_exist_ok=True)
    document = bytearray(TEXT, "ascii")
    # The text is one document: a token for its start, one for each byte, and one for its end.
    order = TrainingOrder((len(document) + 1) // SEQ_LEN, seed=0, fraction=0.0)
    for character, position in BREAKING.items():
        (window,) = order(np.array([position])).tolist()
        document[window * SEQ_LEN + SEQ_LEN // 2] = ord(character)
    (plane.folders.data / "poisoned.txt").write_bytes(document)
    return "data:poisoned.txt"


def fragile(name: str, text: str, *, breaks_on: str) -> dict[str, Any]:
    """Return the spec of a job with a model that some characters of the text break."""
    made = spec(
        name,
        data={"path": text},
        training={
            "steps": STEPS,
            "seq_len": SEQ_LEN,
            "global_batch_size": BATCH,
            "log_every_steps": 2,
            "seed": 0,
        },
        checkpoint={"interval_steps": 4, "keep_latest_k": 0},
        guard={"non_finite_loss": "rollback"},
        resources=ONE_RANK,
    )
    made["model"] = {
        "factory": "fragile:build",
        "code": "data:fragile",
        "arguments": {"width": 16, "breaks_on": breaks_on},
        "vocab_size": 320,
    }
    return made


def digests(yard: Client, job_id: str) -> dict[int, str]:
    """Return the digest of each step's sequences along the job's lineage."""
    values = course(yard, job_id).values
    return {step: value for (name, step), value in values.items() if name == "data_digest"}


def test_a_job_goes_back_and_leaves_out_what_broke_it(
    plane: ControlPlane, yard: Client, follower: Follower, text: str
) -> None:
    job_id = yard.submit(fragile("poisoned", text, breaks_on="~")).id
    # The same sequences through a model that they do not break, two steps further.
    unbroken = fragile("sturdy", text, breaks_on="")
    unbroken["training"]["steps"] = STEPS + 2
    unbroken_id = yard.submit(unbroken).id
    assert finished(yard, unbroken_id).state == "succeeded"
    job = finished(yard, job_id)
    assert (job.state, job.progress.step, job.retries_left) == ("succeeded", STEPS, 1)

    second, first = yard.attempts(job_id)
    assert first.failure is not None
    assert (first.outcome, first.failure.reason) == ("failed", "non_finite_loss")
    assert (first.failure.step, first.skip) == (8, ())
    assert first.failure.bad_window is not None
    assert (first.failure.bad_window.window, first.failure.bad_window.first_step) == (WINDOW, 7)
    assert (second.cause, second.outcome, second.skip) == ("retry", "succeeded", (WINDOW,))
    assert (second.start_step, second.parent_checkpoint_id) == (4, f"{job_id}.a1.step-4")
    assert second.continuity is not None
    assert second.continuity.ok, second.continuity

    # Sequence by sequence the uninterrupted order without the window.
    uninterrupted = digests(yard, unbroken_id)
    left = [digest for step, digest in sorted(uninterrupted.items()) if step not in {7, 8}]
    assert digests(yard, job_id) == dict(enumerate(left, start=1))
    points = course(yard, job_id)
    assert points.attempts == {step: 1 if step <= 4 else 2 for step in range(1, STEPS + 1)}
    losses = [float(points.values["train/loss", step]) for step in points.steps["train/loss"]]
    assert all(map(math.isfinite, losses))

    newest = next(yard.checkpoints(job_id))
    manifest = yard.checkpoint(newest.id).manifest
    assert isinstance(manifest, Manifest)
    data = manifest.train_state.data
    assert (newest.step, data.skipped) == (STEPS, (WINDOW,))
    assert (data.position, data.consumed) == (STEPS * BATCH + 32, STEPS * BATCH)

    told = assert_told_once(yard, job_id, follower)
    (back,) = [event for event in told if event.kind == "rolled_back"]
    assert isinstance(back.data, RolledBack)
    assert (back.attempt, back.data.window, back.data.step) == (1, WINDOW, 4)
    assert back.message == (
        f"Back to step 4 ({job_id}.a1.step-4) after non_finite_loss: 32 sequences, [96, 128), "
        "are left out from now on"
    )
    kinds = [event.kind for event in told]
    assert kinds.count("attempt_ended") == 2
    assert kinds.index("attempt_ended") < kinds.index("rolled_back") < kinds.index("resumed")


@pytest.mark.slow
def test_when_all_rollbacks_are_used_up_the_job_fails(
    plane: ControlPlane, yard: Client, text: str
) -> None:
    made = fragile("hopeless", text, breaks_on="~^")
    job_id = yard.submit(made | {"retry": {"max_retries": 1, "backoff_seconds": 0}}).id
    job = finished(yard, job_id)
    second, first = yard.attempts(job_id)
    assert (job.state, job.retries_left) == ("failed", 0)
    assert "All rollbacks are used up (retry.max_retries=1)" in str(job.reason)
    assert "non_finite_loss" in str(job.reason)
    failures = [attempt.failure for attempt in (first, second)]
    windows = [f.bad_window.window for f in failures if f and f.bad_window]
    assert windows == [WINDOW, (128, 160)]
    assert (second.skip, second.start_step) == ((WINDOW,), 4)
    assert [event.kind for event in yard.events(job_id)].count("rolled_back") == 1
