"""Guards on the values of logged steps: a non-finite value or a loss spike ends the attempt.

A guard reads only values fetched for the log, so no step waits for a guard. docs/guards.md has the
formula and the actions.
"""

from __future__ import annotations

import math
from enum import IntEnum

from trainer.errors import GuardError, LossSpikeError, NonFiniteError
from trainyard.protocol.manifest import TrainState
from trainyard.run.failures import BadWindow
from trainyard.run.session.loss_watch import RecentLosses
from trainyard.spec.job import JobSpec


class Verdict(IntEnum):
    """Result of a check, ordered by severity: the maximum over the ranks is the worst result."""

    GOOD = 0
    SPIKE = 1
    NON_FINITE = 2


class LossGuard:
    """Recent losses and the last good step; both are equal on all ranks.

    An attempt starts without recent losses, and takes its start as the last good step.
    """

    def __init__(self, spec: JobSpec, start: TrainState) -> None:
        self._guard = spec.guard
        self._recent = RecentLosses(spec.guard.spike_factor)
        self._good = start

    @property
    def limit(self) -> float | None:
        """Limit above which a loss is a spike; None during warm-up."""
        return self._recent.limit

    def judge(self, measured: dict[str, float]) -> Verdict:
        """Return this rank's verdict on values whose losses are already reduced over all ranks.

        `NON_FINITE` if any value is not finite, `SPIKE` if `train/loss` is above `limit`. The
        action `ignore` turns off its check.
        """
        if not all(map(math.isfinite, measured.values())):
            bad = self._guard.non_finite_loss != "ignore"
            return Verdict.NON_FINITE if bad else Verdict.GOOD
        limit = self.limit if self._guard.loss_spike != "ignore" else None
        spikes = limit is not None and measured["train/loss"] > limit
        return Verdict.SPIKE if spikes else Verdict.GOOD

    def act(self, verdict: Verdict, measured: dict[str, float], state: TrainState) -> None:
        """Record a good step; for a bad step, raise an error.

        Args:
            verdict: worst verdict over all ranks.
            measured: measured values of the step.
            state: counters after the step.

        Raises:
            GuardError: the step is bad.
        """
        if verdict == Verdict.GOOD:
            self._good = state
            self._recent.add(measured["train/loss"])
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
        # Steps between logged steps are not checked, so all steps since the last good one are
        # suspect.
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
