"""A job that loads parts of a checkpoint: loaded parts are bitwise equal, the rest is new."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.trainer.ranks import RankError
from tests.trainer.runs import JOB, Attempt, Meddling, SmallJob
from tests.trainer.stored import stored_tensors
from trainyard.protocol.manifest import Manifest
from trainyard.protocol.resume_parts import ALL_PARTS, CheckpointPart, parts_not_loaded
from trainyard.spec.layout import Layout

MODEL, OPTIMIZER, COUNTERS, DATA = ALL_PARTS
AT, STEPS = 4, 6


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> SmallJob:
    """A job with a checkpoint of step 4."""
    folder = tmp_path_factory.mktemp("source")
    job = SmallJob(folder).changed(folder, training={"steps": STEPS})
    job.launch(1, Layout(dp_shard=2), Meddling(stop_after=AT - 1))
    return job


def saved(job: SmallJob) -> Manifest:
    return job.committed()[f"{JOB}.a1.step-{AT}"]


def take(
    job: SmallJob, number: int, *, layout: Layout, parts: tuple[CheckpointPart, ...]
) -> Attempt:
    """Launch an attempt that takes parts of the checkpoint."""
    run = job.prepare(number, layout, resume=saved(job))
    path = run / "attempt.json"
    described = json.loads(path.read_text())
    described["resume"]["parts"] = list(parts)
    path.write_text(json.dumps(described))
    return job.launch_prepared(run, layout)


@pytest.mark.parametrize(
    ("number", "layout", "parts"),
    [
        (2, Layout(dp_shard=3), (MODEL,)),
        (3, Layout(pp=2), (MODEL, OPTIMIZER)),
        (4, Layout(), (MODEL, COUNTERS)),
        (5, Layout(), (MODEL, OPTIMIZER, COUNTERS)),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value),
)
def test_what_is_taken_is_exact_and_the_rest_is_fresh(
    source: SmallJob, number: int, layout: Layout, parts: tuple[CheckpointPart, ...]
) -> None:
    attempt = take(source, number, layout=layout, parts=parts)
    start = AT if COUNTERS in parts else 0
    assert list(attempt.lines) == list(range(start + 1, STEPS + 1))
    loaded = source.committed()[f"{JOB}.a{number}.step-{start}"]
    assert loaded.kind == "preflight"
    assert loaded.parent == saved(source).checkpoint_id

    before, after = stored_tensors(source, saved(source)), stored_tensors(source, loaded)
    assert before.keys() == after.keys()
    for name, tensor in after.items():
        if CheckpointPart(name.partition(".")[0]) in parts:
            assert tensor.equal(before[name]), name
        else:
            assert not tensor.any(), f"{name} is that of a fresh start: zero"

    state = loaded.train_state
    assert (state.step, state.tokens) == (start, start * 16 * 32)
    assert (state.data.position, state.data.consumed) == (0, 0), "without its position"
    assert state.data.dataset_digest == saved(source).train_state.data.dataset_digest
    (event,) = [event for event in attempt.events if event.kind == "resumed"]
    assert event.data["parts"] == list(parts)
    assert event.data["not_exact"] == list(parts_not_loaded(parts))
    assert event.step == start


def test_other_data_need_the_position_left_out(source: SmallJob) -> None:
    other = replace(source, spec={**source.spec, "data": {"source": "corpus"}})
    with pytest.raises(RankError):
        take(other, 6, layout=Layout(), parts=ALL_PARTS)
    error = Attempt(other.folder / "runs" / "6").error
    assert error.reason == "checkpoint_error"
    assert "data.source: text -> corpus" in error.message
    attempt = take(other, 7, layout=Layout(), parts=(MODEL, OPTIMIZER, COUNTERS))
    assert list(attempt.lines) == [AT + 1, AT + 2]
    assert attempt.values("train/sequences")[AT + 1] == 16, "counted from the start of these data"
    assert attempt.values("train/tokens")[AT + 1] == (AT + 1) * 16 * 32


def test_another_optimizer_state_matters_only_where_it_is_taken(source: SmallJob) -> None:
    spec = {**source.spec, "optimizer": {"lr": 1e-3, "state_dtype": "bfloat16"}}
    other = replace(source, spec=spec)
    with pytest.raises(RankError):
        take(other, 8, layout=Layout(), parts=ALL_PARTS)
    error = Attempt(other.folder / "runs" / "8").error
    assert "optimizer.state_dtype: float32 -> bfloat16" in error.message
    attempt = take(other, 9, layout=Layout(), parts=(MODEL, COUNTERS, DATA))
    assert attempt.outcome.outcome == "succeeded"
