"""Judges the values of logged steps, and ends a run that goes wrong without crashing.

Only what is fetched for the log anyway is looked at: no step waits for a guard. docs/guards.md has
the formula and what follows.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from enum import IntEnum

from trainer.errors import GuardError, LossSpikeError, NonFiniteError
from trainyard.protocol.manifest import TrainState
from trainyard.run.failures import BadWindow
from trainyard.spec.job import JobSpec

COURSE = 50
"""Logged losses that make up the recent course."""
WARM_UP = 10
"""Logged losses of the attempt before the first one is judged."""
LEAST_DEVIATION = 0.01
"""The standard deviation counts as this share of the mean at least: a flat course is no alarm."""


class Verdict(IntEnum):
    """What is thought of a logged step; the larger one is the worse one."""

    GOOD = 0
    SPIKE = 1
    NON_FINITE = 2


class LossGuard:
    """Knows the recent course of the loss, and since when it has been good; the same on all ranks.

    It begins anew with each attempt: the checkpoint from which it goes on counts as good.
    """

    def __init__(self, spec: JobSpec, start: TrainState) -> None:
        self._guard = spec.guard
        self._course: deque[float] = deque(maxlen=COURSE)
        self._good = start

    @property
    def limit(self) -> float | None:
        """Loss above which the next one is a spike; None while too little is known."""
        if len(self._course) < WARM_UP:
            return None
        mean = statistics.fmean(self._course)
        deviation = max(statistics.pstdev(self._course, mean), LEAST_DEVIATION * abs(mean))
        return mean + self._guard.spike_factor * deviation

    def judge(self, measured: dict[str, float]) -> Verdict:
        """Return what this rank thinks of `train/loss`, `train/loss_max`, `train/grad_norm`."""
        if not all(map(math.isfinite, measured.values())):
            bad = self._guard.non_finite_loss != "ignore"
            return Verdict.NON_FINITE if bad else Verdict.GOOD
        limit = self.limit if self._guard.loss_spike != "ignore" else None
        spikes = limit is not None and measured["train/loss"] > limit
        return Verdict.SPIKE if spikes else Verdict.GOOD

    def act(self, verdict: Verdict, measured: dict[str, float], state: TrainState) -> None:
        """Take in a good step, or end the run.

        Args:
            verdict: what all ranks agreed on.
            measured: the values of the step.
            state: the counters after it.

        Raises:
            GuardError: the step was bad.
        """
        if verdict == Verdict.GOOD:
            self._good = state
            if math.isfinite(measured["train/loss"]):
                self._course.append(measured["train/loss"])
            return
        raise self._error(verdict, measured, state)

    def _error(self, verdict: Verdict, measured: dict[str, float], state: TrainState) -> GuardError:
        kind: type[GuardError]
        metric: str | None = "train/loss"
        if verdict == Verdict.SPIKE:
            action, kind = self._guard.loss_spike, LossSpikeError
            limit = math.nan if self.limit is None else self.limit
            what = f"train/loss is {measured['train/loss']:.6g}, above the limit {limit:.6g}"
        else:
            action, kind = self._guard.non_finite_loss, NonFiniteError
            metric = next((n for n, v in measured.items() if not math.isfinite(v)), None)
            value = math.nan if metric is None else measured[metric]
            what = f"{metric or 'a value of another rank'} is {value}"
        message = f"{what} at step {state.step}"
        if action != "rollback":
            return kind(message, metric=metric)
        window = BadWindow(
            start=self._good.data.position,
            end=state.data.position,
            first_step=self._good.step + 1,
        )
        return kind(
            f"{message}; step {self._good.step} was good. Left out next: sequences "
            f"[{window.start}, {window.end}), by a checkpoint from before step {window.first_step} "
            f"and `skip` in attempt.json",
            metric=metric,
            bad_window=window,
        )
