"""Guards: the definition of a spike, and a job that omits the damaging data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.ranks import RankError
from tests.trainer.runs import Attempt, Meddling, SmallJob
from trainer.errors import GuardError, LossSpikeError, NonFiniteError
from trainer.metrics.loss_guard import LossGuard, Verdict
from trainyard.protocol.manifest import DataState, TrainState
from trainyard.run.failures import BadWindow, Failure, FailureReason
from trainyard.run.session.loss_watch import WARM_UP, WINDOW
from trainyard.spec.job import parse_job_spec
from trainyard.spec.layout import Layout

START = TrainState(step=40, tokens=0, data=DataState(position=640, dataset_digest="d"))


def state(step: int) -> TrainState:
    data = START.data.model_copy(update={"position": 16 * step})
    return START.model_copy(update={"step": step, "data": data})


def measured(loss: float, grad_norm: float = 1.0) -> dict[str, float]:
    return {"train/loss": loss, "train/loss_max": loss, "train/grad_norm": grad_norm}


def guard(*losses: float, **section: Any) -> LossGuard:
    made = LossGuard(parse_job_spec({"guard": section}), START)
    for step, loss in enumerate(losses, start=START.step + 1):
        made.act(made.judge(measured(loss)), measured(loss), state(step))
    return made


NOISY = [2.0, 2.2] * 5  # mean 2.1, standard deviation 0.1


@pytest.mark.parametrize(("loss", "spikes"), [(2.39, False), (2.41, True), (1.0, False)])
def test_a_spike_lies_some_deviations_above_the_mean(loss: float, *, spikes: bool) -> None:
    verdict = guard(*NOISY, loss_spike="stop", spike_factor=3.0).judge(measured(loss))
    assert verdict == (Verdict.SPIKE if spikes else Verdict.GOOD)


def test_a_flat_course_raises_no_alarm_by_noise() -> None:
    flat = guard(*[2.0] * WARM_UP, loss_spike="stop", spike_factor=3.0)
    assert flat.judge(measured(2.05)) == Verdict.GOOD
    assert flat.judge(measured(2.07)) == Verdict.SPIKE


def test_nothing_is_judged_before_a_course_is_known() -> None:
    assert guard(*NOISY[:-1], loss_spike="stop").judge(measured(50.0)) == Verdict.GOOD


def test_what_is_long_past_is_forgotten() -> None:
    course = guard(*[9.0] * WARM_UP, *[2.0] * WINDOW, loss_spike="stop")
    assert course.limit == pytest.approx(2.0 + 3 * 0.02)


def test_without_the_guard_nothing_is_a_spike() -> None:
    assert guard(*NOISY).judge(measured(50.0)) == Verdict.GOOD


@pytest.mark.parametrize("values", [measured(math.nan), measured(2.0, math.inf)], ids=str)
def test_what_is_no_number(values: dict[str, float]) -> None:
    assert guard().judge(values) == Verdict.NON_FINITE
    assert guard(loss_spike="stop", non_finite_loss="ignore").judge(values) == Verdict.GOOD


def test_a_loss_that_is_ignored_is_no_part_of_the_course() -> None:
    course = guard(*NOISY, math.nan, loss_spike="stop", non_finite_loss="ignore")
    assert course.limit == pytest.approx(2.4)


@pytest.mark.parametrize(
    ("verdict", "values", "section", "kind"),
    [
        (Verdict.SPIKE, measured(50.0), "loss_spike", LossSpikeError),
        (Verdict.NON_FINITE, measured(2.0, math.nan), "non_finite_loss", NonFiniteError),
    ],
)
@pytest.mark.parametrize("action", ["stop", "rollback"])
def test_a_rollback_names_everything_since_the_last_good_step(
    verdict: Verdict, values: dict[str, float], section: str, kind: type[GuardError], action: str
) -> None:
    judge = guard(*NOISY, **{section: action})
    with pytest.raises(kind, match="at step 60") as caught:
        judge.act(verdict, values, state(60))
    expected = BadWindow(start=800, end=960, first_step=51)
    assert caught.value.bad_window == (expected if action == "rollback" else None)
    assert ("attempt.json" in str(caught.value)) == (action == "rollback")


def test_the_checkpoint_at_the_start_counts_as_good() -> None:
    with pytest.raises(NonFiniteError) as caught:
        guard(math.nan, non_finite_loss="rollback")
    assert caught.value.bad_window == BadWindow(start=640, end=656, first_step=41)


# ---- on ranks ------------------------------------------------------------------------------------


def failing(job: SmallJob, layout: Layout, meddling: Meddling) -> Failure:
    """Launch an attempt that a guard must end on every rank alike, and return the reason."""
    with pytest.raises(RankError):
        job.launch(1, layout, meddling)
    return Attempt(job.folder / "runs" / "1").error


def test_a_job_that_rolls_back_is_one_that_never_saw_the_window(tmp_path: Path) -> None:
    """On two ranks a sequence of step 7 breaks the weights; on three ranks the job omits it."""
    bad = Meddling(breaks=(100, math.nan))
    job = SmallJob(tmp_path / "job").changed(
        tmp_path / "job",
        training={"steps": 12, "log_every_steps": 2},
        checkpoint={"interval_steps": 4},
        guard={"non_finite_loss": "rollback"},
    )
    error = failing(job, Layout(dp_shard=2), bad)
    assert (error.reason, error.step) == (FailureReason.NON_FINITE_LOSS, 8)
    assert error.bad_window == BadWindow(start=96, end=128, first_step=7)
    saved = job.committed().values()
    assert max(m.train_state.step for m in saved) == 4, "nothing was saved after it"
    last = max(saved, key=lambda manifest: manifest.train_state.step)

    window = error.bad_window.window
    after = job.launch(2, Layout(dp_shard=3), bad, resume=last, skip=(window,))
    straight = SmallJob(tmp_path / "straight", spec=job.spec)
    never = straight.launch(1, Layout(dp_shard=2), bad, skip=(window,))

    assert after.digests == {step: never.digests[step] for step in range(5, 13)}
    losses = never.values("train/loss")
    for step, loss in after.values("train/loss").items():
        if step in losses:
            assert loss == pytest.approx(losses[step], abs=1e-5)
    states = [
        one.committed()[str(attempt.outcome.checkpoint_id)].train_state
        for one, attempt in ((job, after), (straight, never))
    ]
    assert states[0] == states[1]
    data = states[0].data
    assert (data.position, data.consumed, data.skipped) == (12 * 16 + 32, 12 * 16, ((96, 128),))


def test_a_spike_ends_the_run_before_it_is_saved(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path,
        training={"steps": 14, "log_every_steps": 1},
        checkpoint={"interval_steps": 1},
        guard={"loss_spike": "rollback", "spike_factor": 10.0},
    )
    error = failing(job, Layout(dp_shard=2), Meddling(breaks=(12 * 16 + 3, 20.0)))
    assert (error.reason, error.step) == (FailureReason.LOSS_SPIKE, 13)
    assert error.bad_window == BadWindow(start=192, end=208, first_step=13)
    assert max(m.train_state.step for m in job.committed().values()) == 12


def test_a_window_that_was_trained_on_cannot_be_left_out(tmp_path: Path) -> None:
    job = SmallJob(tmp_path).changed(
        tmp_path, training={"steps": 2}, lr_schedule={"warmup_steps": 1}
    )
    done = job.launch(1, Layout())
    more = job.changed(tmp_path, training={"steps": 4}, lr_schedule={"total_steps": 2})
    last = job.committed()[str(done.outcome.checkpoint_id)]
    with pytest.raises(RankError, match=r"\[31, 40\) begins before position 32"):
        more.launch(2, Layout(), resume=last, skip=((31, 40),))
