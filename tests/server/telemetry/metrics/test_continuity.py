"""The first step of a resumed attempt against the lineage."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sqlalchemy import select

from server.core.context import Context
from server.core.database.tables import events
from server.jobs.jobs.resume import resume
from server.telemetry.metrics.continuity.first_step import Past, compare, of_program
from server.telemetry.metrics.continuity.losses import OtherLoss, share
from tests.actors import ADA
from tests.server.harness import Harness, Supervisor
from tests.server.reports import chunk, json_lines, metric_lines, send
from trainyard.protocol.manifest import DataState, TrainState
from trainyard.protocol.rest.attempts import Continuity
from trainyard.protocol.rest.resume import ResumeRequest
from trainyard.run.failures import BadWindow, FailureReason
from trainyard.run.records import MetricRecord
from trainyard.spec.job import JobSpec, parse_job_spec

SPEC = parse_job_spec({"training": {"steps": 100, "global_batch_size": 16, "seq_len": 128}})
PARENT = TrainState(
    step=50, tokens=50 * 2048, data=DataState(position=800, consumed=800, dataset_digest="d")
)
STEADY = tuple(2.0 + 0.01 * (number % 3) for number in range(20))


def line(spec: JobSpec = SPEC, **changes: Any) -> MetricRecord:
    values = {
        "train/loss": 2.0,
        "train/lr": spec.schedule.rate(51),
        "train/tokens": 51 * 2048.0,
        "train/sequences": 51 * 16.0,
    }
    values |= {f"train/{name}": value for name, value in changes.items() if name != "digest"}
    return MetricRecord(
        step=51, time=1.0, values=values, data_digest=changes.get("digest", "a" * 32)
    )


def another(loss: float, *, grad_norm: float = 1.0, steps: int = 1) -> OtherLoss:
    return OtherLoss("attempt 1", loss, grad_norm, steps)


def past(
    *digests: tuple[int, str],
    same_step: OtherLoss | None = None,
    last: tuple[float, ...] = STEADY,
) -> Past:
    return Past(digests=digests, same_step=same_step, last_losses=last)


def broken(found: Continuity) -> list[str]:
    names: list[str] = [check.name for check in found.checks if not check.ok]
    assert found.ok is (not names)
    return names


def test_an_exact_resume_holds_every_check() -> None:
    found = compare(
        SPEC, PARENT, record=line(), past=past((1, "a" * 32), same_step=another(2.00001))
    )
    assert broken(found) == []
    names = [check.name for check in found.checks]
    assert names == ["sequences", "tokens", "lr", "data_digest", "loss"]
    assert found.step == 51


def test_the_summary_names_each_bound_and_exact_needs_a_digest() -> None:
    same_step = compare(
        SPEC, PARENT, record=line(), past=past((1, "a" * 32), same_step=another(2.00001))
    )
    assert same_step.exact
    assert same_step.summary == (
        "same sequences, same token count, same learning rate, loss within 1e-5 of attempt 1"
    )
    in_band = compare(SPEC, PARENT, record=line(), past=past())
    assert in_band.ok
    assert not in_band.exact, "no digest proves which sequences these were"
    assert in_band.summary == (
        "as many sequences, same token count, same learning rate, "
        "loss within the range of the last 20 losses"
    )
    assert compare(SPEC, PARENT, record=line(), past=past(last=())).summary.endswith(
        "loss not compared"
    )
    other = compare(
        SPEC, PARENT, record=line(loss=2.01), past=past((1, "a" * 32), same_step=another(2.0))
    )
    assert not other.exact
    assert other.summary == "differs in loss"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"sequences": 51 * 16 + 1.0}, "sequences"),
        ({"sequences": math.nan}, "sequences"),
        ({"tokens": 1.0}, "tokens"),
        ({"lr": SPEC.schedule.rate(52) + 1e-9}, "lr"),
        ({"digest": "b" * 32}, "data_digest"),
        ({"digest": None}, "data_digest"),
        ({"loss": 2.01}, "loss"),
        ({"loss": math.nan}, "loss"),
    ],
    ids=str,
)
def test_each_difference_is_seen(changes: dict[str, Any], name: str) -> None:
    found = compare(
        SPEC, PARENT, record=line(**changes), past=past((1, "a" * 32), same_step=another(2.0))
    )
    assert broken(found) == [name]


def test_a_digest_must_agree_with_every_branch() -> None:
    found = compare(SPEC, PARENT, record=line(), past=past((3, "a" * 32), (2, "b" * 32)))
    assert broken(found) == ["data_digest"]
    assert any("attempt 2" in check.expected for check in found.checks)


@pytest.mark.parametrize(
    ("loss", "ok"),
    [(2.0, True), (2.19, True), (1.85, True), (2.3, False), (1.7, False), (math.nan, False)],
)
def test_a_loss_without_a_record_stays_in_the_band(loss: float, *, ok: bool) -> None:
    assert compare(SPEC, PARENT, record=line(loss=loss), past=past()).ok is ok


def test_a_noisy_course_widens_the_band() -> None:
    noisy = tuple(2.0 + (-1) ** number * 0.3 for number in range(20))
    assert compare(SPEC, PARENT, record=line(loss=3.4), past=past(last=noisy)).ok
    assert not compare(SPEC, PARENT, record=line(loss=3.6), past=past(last=noisy)).ok


def test_what_nothing_is_known_of_is_not_checked() -> None:
    found = compare(SPEC, PARENT, record=line(), past=past(last=()))
    assert [check.name for check in found.checks] == ["sequences", "tokens", "lr"]


def test_the_code_of_an_own_model_is_compared_where_it_is_known() -> None:
    same = compare(SPEC, PARENT, record=line(), past=past(), code=("c" * 32, "c" * 32))
    assert same.ok
    assert same.checks[-1].name == "code"
    other = compare(SPEC, PARENT, record=line(), past=past(), code=("c" * 32, "d" * 32))
    assert broken(other) == ["code"]
    assert (other.checks[-1].expected, other.checks[-1].got) == ("c" * 32, "d" * 32)


# ---- through reports ---------------------------------------------------------------------------


def trained(first: int, last: int, *, wrong_data_at: int = 0, spike_at: int = 0) -> bytes:
    """Return the trainer's lines for the default spec of the harness."""
    spec = parse_job_spec({"name": "tiny"})
    return json_lines(
        [
            {
                "step": step,
                "time": float(step),
                "values": {
                    "train/loss": 3.0 - step / 100,
                    "train/grad_norm": 40.0 if step == spike_at else 4.0 if step == 12 else 1.0,
                    "train/lr": spec.schedule.rate(step),
                    "train/tokens": float(step * spec.tokens_per_step),
                    "train/sequences": float(step * spec.training.global_batch_size),
                },
                "data_digest": f"{step + (step == wrong_data_at):032x}",
            }
            for step in range(first, last + 1)
        ]
    )


def continuity_events(context: Context) -> list[dict[str, Any]]:
    with context.database.read() as connection:
        query = select(events.c.data).where(events.c.kind == "continuity_checked")
        return list(connection.scalars(query))


def stopped_at(harness: Harness, supervisor: Supervisor, *, saved: int, ran_to: int) -> None:
    """Report steps up to `ran_to` with a checkpoint in between, and end."""
    job_id = supervisor.reply.attempt.job_id
    send(harness.context, supervisor, chunk("metrics", trained(1, ran_to)))
    supervisor.train(ran_to)
    harness.commit_checkpoint(job_id, saved)
    supervisor.end("failed", FailureReason.DATA_ERROR)  # which is not retried


def resumed(harness: Harness, job_id: str, checkpoint_id: str | None = None) -> Supervisor:
    """Resume the job, and return the supervisor of the new attempt."""
    request = ResumeRequest(checkpoint_id=checkpoint_id)
    resume(harness.context, job_id, request, actor=ADA)
    assert harness.place() == 1
    (supervisor,) = harness.claim_all(job_id)
    supervisor.train(harness.attempt(job_id).start_step)
    return supervisor


def test_a_resume_is_checked_once_by_its_first_report(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, (first,) = harness.launched()
    stopped_at(harness, first, saved=30, ran_to=40)
    second = resumed(harness, job_id)
    lines = trained(31, 50)
    cut = lines.index(b"\n", 900) + 1
    send(context, second, chunk("metrics", lines[:cut]))
    found = harness.attempt(job_id).continuity
    assert found.ok, found
    assert [check.name for check in found.checks] == [
        "sequences", "tokens", "lr", "data_digest", "loss",
    ]  # fmt: skip
    send(context, second, chunk("metrics", lines))
    (event,) = continuity_events(context)
    assert event == found.model_dump(mode="json")


def test_wrong_data_after_a_resume_is_reported(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, (first,) = harness.launched()
    stopped_at(harness, first, saved=30, ran_to=40)
    second = resumed(harness, job_id)
    send(context, second, chunk("metrics", trained(31, 33, wrong_data_at=31)))
    assert broken(harness.attempt(job_id).continuity) == ["data_digest"]


def test_steps_without_a_record_are_compared_with_the_course(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, (first,) = harness.launched()
    stopped_at(harness, first, saved=30, ran_to=30)
    second = resumed(harness, job_id)
    send(context, second, chunk("metrics", trained(31, 33)))
    found = harness.attempt(job_id).continuity
    assert found.ok, found
    assert found.checks[-1].expected.endswith("(last 20 losses)")


def test_a_branch_is_compared_with_the_branch_that_it_left(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, (first,) = harness.launched()
    stopped_at(harness, first, saved=10, ran_to=40)
    second = resumed(harness, job_id)
    send(context, second, chunk("metrics", trained(11, 20)))
    harness.commit_checkpoint(job_id, 20)
    second.end("failed", FailureReason.DATA_ERROR)
    third = resumed(harness, job_id, f"{job_id}.a1.step-10")
    send(context, third, chunk("metrics", trained(11, 12, wrong_data_at=11)))
    (check,) = [c for c in harness.attempt(job_id).continuity.checks if c.name == "data_digest"]
    assert not check.ok
    assert check.expected.endswith("(attempt 2)")


@pytest.mark.parametrize(("first_step", "compared"), [(31, False), (35, True)])
def test_data_that_differ_by_a_rollback_are_no_difference(
    harness: Harness, context: Context, first_step: int, *, compared: bool
) -> None:
    harness.add_node()
    job_id, (first,) = harness.launched()
    send(context, first, chunk("metrics", trained(1, 40)))
    first.train(40)
    harness.commit_checkpoint(job_id, 30)
    bad = BadWindow(start=16 * (first_step - 1), end=640, first_step=first_step)
    first.end("failed", FailureReason.LOSS_SPIKE, bad_window=bad)
    harness.clock.advance(60)
    assert harness.place() == 1
    (second,) = harness.claim_all(job_id)
    second.train(30)
    send(context, second, chunk("metrics", trained(31, 33, wrong_data_at=31)))
    found = harness.attempt(job_id).continuity
    assert broken(found) == (["data_digest"] if compared else [])
    assert compared == found.checks[-1].expected.endswith("(attempt 1)")


@pytest.mark.parametrize(
    ("spike_at", "within"),
    [
        (0, "6.4e-5"),  # a norm of 4, which both attempts had
        (20, "6.4e-4"),  # a norm of 40, which only the attempt's own course had
    ],
)
def test_the_bound_counts_steps_and_norms_since_two_attempts_parted(
    harness: Harness, context: Context, spike_at: int, within: str
) -> None:
    harness.add_node()
    job_id, (first,) = harness.launched()
    stopped_at(harness, first, saved=10, ran_to=40)
    second = resumed(harness, job_id)
    send(context, second, chunk("metrics", trained(11, 25, spike_at=spike_at)))
    second.train(25)
    harness.commit_checkpoint(job_id, 25)
    second.end("failed", FailureReason.DATA_ERROR)
    third = resumed(harness, job_id)
    send(context, third, chunk("metrics", trained(26, 26)))
    found = harness.attempt(job_id).continuity
    assert found.checks[-1].within == f"{within} of attempt 1"  # 16 steps since step 10


def test_a_fresh_start_is_not_checked(harness: Harness, context: Context) -> None:
    harness.add_node()
    job_id, (first,) = harness.launched()
    send(context, first, chunk("metrics", metric_lines(1, 3)))
    assert harness.attempt(job_id).continuity is None
    assert continuity_events(context) == []


def test_changed_code_is_named_in_the_badge_and_changed_fields_in_the_event(
    harness: Harness, context: Context
) -> None:
    harness.add_node()
    job_id, (first,) = harness.launched()
    stopped_at(harness, first, saved=30, ran_to=30)
    second = resumed(harness, job_id)
    data = {
        "checkpoint_id": f"{job_id}.a1.step-30",
        "changed": ["parallelism.dp_shard: 2 -> 4"],
        "code": {"before": "c" * 32, "now": "d" * 32},
    }
    told = json_lines([{"time": 1.0, "kind": "resumed", "step": 30, "data": data}])
    send(context, second, chunk("events", told), chunk("metrics", trained(31, 31)))
    assert broken(harness.attempt(job_id).continuity) == ["code"]
    with context.database.read() as connection:
        message = connection.scalar(select(events.c.message).where(events.c.kind == "resumed"))
    assert str(message).endswith("step-30; changed: parallelism.dp_shard: 2 -> 4")


# ---- programs ----------------------------------------------------------------------------------


def test_the_order_of_a_program_is_exact_where_its_digest_is_that_of_another_attempt() -> None:
    before = past((1, "a" * 32), same_step=another(2.0005))
    found = of_program(line(), before, 2.0)
    assert found is not None
    assert found.exact
    assert found.summary == "order exact, loss within 0.1 % of attempt 1"
    without = of_program(line(), before, None)
    assert without is not None
    assert without.summary == "order exact, loss not compared"
    other = of_program(line(digest="b" * 32), before, 3.0)
    assert other is not None
    assert broken(other) == ["data_digest", "loss"]
    assert not other.exact


def test_a_program_without_digests_of_the_step_is_not_compared() -> None:
    assert of_program(line(digest=None), past((1, "a" * 32)), 2.0) is None
    assert of_program(line(), past(), 2.0) is None


@pytest.mark.parametrize(
    ("changes", "other", "within"),
    [
        ({}, another(2.0000101), "1e-5"),
        ({}, another(2.00003), None),
        ({"loss": 2.00003, "grad_norm": 0.5}, another(2.0, grad_norm=36.0), "3.6e-4"),
        ({"loss": 2.00003, "grad_norm": 36.0}, another(2.0, grad_norm=math.nan), "3.6e-4"),
        ({"loss": 2.00003}, another(2.0, steps=40), "4e-5"),
        ({"loss": 2.5, "grad_norm": 1e30}, another(2.0), None),
    ],
)
def test_the_bound_of_a_loss_follows_gradient_norm_and_steps(
    changes: dict[str, Any], other: OtherLoss, within: str | None
) -> None:
    found = compare(SPEC, PARENT, record=line(**changes), past=past((1, "a" * 32), same_step=other))
    loss = next(check for check in found.checks if check.name == "loss")
    assert loss.ok is (within is not None)
    assert within is None or loss.within == f"{within} of attempt 1"


def test_the_bound_of_a_loss_is_that_of_the_precision() -> None:
    low = parse_job_spec(
        {
            "training": {
                "steps": 100,
                "global_batch_size": 16,
                "seq_len": 128,
                "param_dtype": "bfloat16",
            }
        }
    )
    before = past((1, "a" * 32), same_step=another(2.005))
    assert broken(compare(low, PARENT, record=line(low), past=before)) == []
    assert broken(compare(SPEC, PARENT, record=line(), past=before)) == ["loss"]


@pytest.mark.parametrize(
    ("bound", "text"),
    [(1e-5, "1e-5"), (3.6e-4, "3.6e-4"), (1e-3, "0.1 %"), (3e-3, "0.3 %"), (0.1, "10 %")],
)
def test_a_bound_is_short(bound: float, text: str) -> None:
    assert share(bound) == text
