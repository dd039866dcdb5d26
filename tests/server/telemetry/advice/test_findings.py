"""Each rule of advice: when it applies, what it names, and what it omits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from server.telemetry.advice.advice_input import (
    LEAST_SHARE,
    BestSaves,
    Observed,
    RecentSteps,
    gain_of,
)
from server.telemetry.advice.findings import findings_of
from trainyard.protocol.goodput import AdviceFinding, Hindrance, TimeCategory
from trainyard.protocol.rest.metrics_and_logs import StragglerView
from trainyard.spec.job import parse_job_spec

SLOW = StragglerView(
    rank=5,
    node="n-2",
    slot=1,
    kind="compute",
    factor=1.5,
    share=0.2,
    step=100,
    found_at=datetime(2026, 1, 1, tzinfo=UTC),
    gone_at=None,
    words="rank 5 is slow",
)


def observed(
    spent: dict[TimeCategory, int] | None = None,
    *,
    recent: RecentSteps | None = None,
    slow: tuple[StragglerView, ...] = (),
    best: BestSaves | None = None,
    **sections: Any,
) -> Observed:
    return Observed(
        spec=parse_job_spec(sections),
        spent={TimeCategory.PRODUCTIVE: 100_000} | (spent or {}),
        recent=recent,
        stragglers=slow,
        best_saves=best,
    )


def recent(**times: float) -> RecentSteps:
    return RecentSteps(**{"attempt": 2, "steps": 500, "step": 1.0, "data": 0.0} | times)  # type: ignore[arg-type]


def only(seen: Observed) -> AdviceFinding:
    (finding,) = findings_of(seen)
    return finding


def test_a_job_whose_time_is_spent_on_training_has_no_finding() -> None:
    assert findings_of(observed(recent=recent(own=0.9, own_most=0.92, wait=0.08))) == ()
    assert findings_of(observed()) == ()


@pytest.mark.parametrize(("ahead", "field"), [(0, "data.prefetch_batches"), (2, "data.path")])
def test_waiting_for_data(ahead: int, field: str) -> None:
    found = only(observed(recent=recent(data=0.2), data={"prefetch_batches": ahead}))
    assert (found.hindrance, found.field) == (Hindrance.DATA_WAIT, field)
    assert found.share == pytest.approx(0.2)
    assert found.gain == pytest.approx(0.25)
    assert {each.name: each.value for each in found.evidence} == {
        "perf/data_seconds": 0.2,
        "perf/step_seconds": 1.0,
    }


def test_collectives_but_not_what_a_slow_rank_causes() -> None:
    steps = {"own": 0.5, "own_most": 0.55, "wait": 0.5}
    found = only(observed(recent=recent(**steps), resources={"world_size": 2}))
    assert (found.hindrance, found.field) == (Hindrance.COLLECTIVES, "training.micro_batch_size")
    assert found.share == pytest.approx(0.45)
    split: dict[str, Any] = {"resources": {"world_size": 2}, "parallelism": {"tp": 2}}
    assert only(observed(recent=recent(**steps), **split)).field == "parallelism.tp"
    slowest = recent(own=0.5, own_most=0.9, wait=0.5)
    assert findings_of(observed(recent=slowest, resources={"world_size": 2})) == ()


def test_the_costliest_straggler_is_named() -> None:
    other = SLOW.model_copy(update={"rank": 6, "node": "n-3", "kind": "data", "share": 0.1})
    found = only(observed(slow=(SLOW, other)))
    assert found.hindrance == Hindrance.STRAGGLER
    assert found.words == (
        "Rank 5 on n-2, slot 1, computes longer than its peers, and 1 more: all ranks wait for it "
        "20 % of a step."
    )
    assert "trainyard nodes drain n-2" in found.remedy
    assert found.field is None


def test_saves_are_made_in_the_background_first_and_less_often_then() -> None:
    spent = {TimeCategory.SAVE_STALL: 10_000}
    waits = only(observed(spent, checkpoint={"async_mode": "disabled"}))
    assert (waits.hindrance, waits.field) == (Hindrance.SAVES, "checkpoint.async_mode")
    assert waits.share == pytest.approx(10 / 110)
    best = BestSaves(interval_steps=400, productive_gain=0.07)
    often = only(observed(spent, best=best))
    assert (often.field, often.gain) == ("checkpoint.interval_steps", 0.07)
    assert "400" in often.remedy


def test_lost_steps_have_the_gain_of_the_replay_or_none() -> None:
    spent = {TimeCategory.LOST: 20_000}
    assert only(observed(spent)).gain is None
    best = BestSaves(interval_steps=50, productive_gain=0.12)
    found = only(observed(spent, best=best))
    assert (found.hindrance, found.gain) == (Hindrance.LOST_STEPS, 0.12)


@pytest.mark.parametrize(
    ("category", "time", "hindrance", "field"),
    [
        (TimeCategory.COMPILATION, 5_000, Hindrance.COMPILATION, "compile.enabled"),
        (TimeCategory.VALIDATION, 20_000, Hindrance.VALIDATION, "validation.interval_steps"),
        (TimeCategory.STARTUP, 40_000, Hindrance.STARTUP, None),
    ],
)
def test_shares_of_the_ledger(
    category: TimeCategory, time: int, hindrance: Hindrance, field: str | None
) -> None:
    found = only(observed({category: time}, validation={"interval_steps": 10}))
    assert (found.hindrance, found.field) == (hindrance, field)
    assert found.share == pytest.approx(time / (100_000 + time))
    assert found.evidence[0].value == time / 1000


def test_time_without_slots_is_no_part_of_the_whole() -> None:
    waits = {TimeCategory.QUEUED: 10**9, TimeCategory.PAUSED: 10**9, TimeCategory.LOST: 5_000}
    assert only(observed(waits)).share == pytest.approx(5 / 105)


def test_recompilation_in_recent_steps() -> None:
    found = only(observed(recent=recent(recompiled=50.0)))
    assert (found.hindrance, found.field) == (Hindrance.RECOMPILATION, "env.TORCH_LOGS")
    assert found.share == pytest.approx(0.1)  # of 500 steps of a second
    assert found.gain == pytest.approx(1 / 0.9 - 1)
    assert findings_of(observed(recent=recent(recompiled=10.0))) == ()


def test_collections_are_made_rare_enough_to_be_no_finding() -> None:
    found = only(observed(recent=recent(collected=52.0), training={"gc_freq": 20}))
    assert (found.hindrance, found.field) == (Hindrance.GARBAGE_COLLECTION, "training.gc_freq")
    assert found.share == pytest.approx(0.104)  # of 500 steps of a second
    assert "to 220:" in found.remedy
    assert found.gain == pytest.approx(1 / (1 - 0.104 * 10 / 11) - 1)
    assert {each.name: each.value for each in found.evidence} == {
        "gc/seconds": 52.0,
        "perf/step_seconds": 1.0,
    }
    assert findings_of(observed(recent=recent(collected=5.0))) == ()
    program = {"command": ["python", "train.py"]}
    assert only(observed(recent=recent(collected=50.0), program=program)).field is None


def test_small_micro_batches_with_memory_to_spare() -> None:
    batches: dict[str, Any] = {"training": {"global_batch_size": 16, "micro_batch_size": 4}}
    found = only(observed(recent=recent(peak_share=0.3), **batches))
    assert found.field == "training.micro_batch_size"
    assert "to 8" in found.remedy
    assert findings_of(observed(recent=recent(peak_share=0.6), **batches)) == ()
    batches["training"]["micro_batch_size"] = 16
    assert findings_of(observed(recent=recent(peak_share=0.3), **batches)) == ()


@pytest.mark.parametrize(
    ("mode", "sequences", "field", "words"),
    [
        ("none", 4, "activation_checkpoint.mode", '"selective"'),
        ("selective", 4, "activation_checkpoint.mode", '"full"'),
        ("full", 4, "training.micro_batch_size", "to 2"),
        ("full", 1, None, "more slots"),
    ],
)
def test_an_allocator_without_room(
    mode: str, sequences: int, field: str | None, words: str
) -> None:
    full = recent(peak_share=0.98, allocation_retries=3.0)
    sections: dict[str, Any] = {
        "activation_checkpoint": {"mode": mode},
        "training": {"micro_batch_size": sequences},
    }
    found = only(observed(recent=full, **sections))
    assert (found.hindrance, found.field) == (Hindrance.FULL_MEMORY, field)
    assert words in found.remedy


def test_the_costliest_comes_first_and_each_names_a_field_that_exists() -> None:
    spent = {TimeCategory.LOST: 20_000, TimeCategory.SAVE_STALL: 30_000}
    found = findings_of(observed(spent, recent=recent(data=0.05), slow=(SLOW,)))
    assert [each.share for each in found] == sorted((e.share for e in found), reverse=True)
    assert len(found) == 4
    document = parse_job_spec({}).model_dump()
    for field in (each.field for each in found if each.field):
        section, name = field.split(".")
        assert name in document[section]


def test_of_a_program_no_field_of_the_built_in_trainer_is_named() -> None:
    spent = dict[TimeCategory, int].fromkeys(
        (TimeCategory.LOST, TimeCategory.SAVE_STALL, TimeCategory.COMPILATION), 20_000
    )
    steps = recent(data=0.2, own=0.4, own_most=0.4, wait=0.6, peak_share=0.1)
    program: dict[str, Any] = {"program": {"command": ["python", "train.py"]}}
    best = BestSaves(interval_steps=50, productive_gain=0.1)
    found = findings_of(observed(spent, recent=steps, best=best, **program))
    assert {each.field for each in found} == {None}
    assert not [each.remedy for each in found if "checkpoint.interval_steps" in each.remedy]
    assert {each.hindrance for each in found} == {
        *(Hindrance.LOST_STEPS, Hindrance.SAVES, Hindrance.DATA_WAIT, Hindrance.COLLECTIVES)
    }


def test_the_gain_of_a_share() -> None:
    assert gain_of(0.5) == pytest.approx(1.0)
    assert gain_of(1.0) == pytest.approx(9.0)
    assert LEAST_SHARE < 0.05
