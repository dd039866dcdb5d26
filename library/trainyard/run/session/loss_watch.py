"""Guards on logged losses: the limit above which a loss is a spike, and checks of a program's
losses."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.run.failures import BadWindow, Failure, FailureReason, Remedy
from trainyard.run.record_files import create_record

WINDOW = 50
"""Number of logged losses for the running mean and deviation."""
WARM_UP = 10
"""Number of losses that an attempt must log before the first check for a spike."""
LEAST_DEVIATION = 0.01
"""Lower bound of the standard deviation, as a share of the mean. Without this bound the deviation
would approach zero on a plateau, and noise would count as a spike."""
LOSS, GRAD_NORM = "train/loss", "train/grad_norm"

REMEDY = Remedy(
    text="A resume repeats these steps, unless the program makes them differ: submit again with "
    "other arguments, such as a lower rate.",
    field="program.arguments",
)


class BadLossError(RuntimeError):
    """A guard of the job found a bad loss, so the attempt must end."""


class RecentLosses:
    """Last losses of an attempt, and the loss above which the next step counts as a spike."""

    def __init__(self, spike_factor: float) -> None:
        self._factor = spike_factor
        self._recent: deque[float] = deque(maxlen=WINDOW)

    @property
    def limit(self) -> float | None:
        """Loss above which the next step is a spike; None during the warm-up."""
        if len(self._recent) < WARM_UP:
            return None
        mean = statistics.fmean(self._recent)
        deviation = max(statistics.pstdev(self._recent, mean), LEAST_DEVIATION * abs(mean))
        return mean + self._factor * deviation

    def add(self, loss: float) -> None:
        """Add the loss of a good step; ignore NaN and infinity, which would make the mean
        useless."""
        if math.isfinite(loss):
            self._recent.append(loss)


class LossWatch:
    """Guards of a program's job, applied to `train/loss` and `train/grad_norm` of rank 0."""

    def __init__(
        self, guard: Mapping[str, Any], *, start: int = 0, error: Path | None = None
    ) -> None:
        """Start after step `start`, which counts as a good step.

        Args:
            guard: section `guard` of the job's spec; if empty, nothing is checked.
            start: step of the parent checkpoint; 0 without one.
            error: file in which the failure of a bad step is stored for the server; None for no
                file.
        """
        self._error = error
        self._non_finite = guard.get("non_finite_loss", "ignore")
        self._spike = guard.get("loss_spike", "ignore")
        self._recent = RecentLosses(float(guard.get("spike_factor", 3.0)))
        self._good = start

    def check(self, step: int, values: Mapping[str, float]) -> None:
        """If a step is bad, write the failure and raise an error.

        Raises:
            BadLossError: the step is bad.
            OSError: the failure cannot be written.
        """
        if (failure := self.judge(step, values)) is None:
            return
        if self._error is not None:
            create_record(self._error, failure)
        raise BadLossError(failure.message)

    def judge(self, step: int, values: Mapping[str, float]) -> Failure | None:
        """Return the failure if the loss or the gradient norm of a step is bad; otherwise note the
        step as good, and return None."""
        measured = {name: values[name] for name in (LOSS, GRAD_NORM) if name in values}
        bad = next((name for name, value in measured.items() if not math.isfinite(value)), None)
        if bad is not None and self._non_finite != "ignore":
            what = f"{bad} is {measured[bad]} at step {step}"
            return self._failure(
                FailureReason.NON_FINITE_LOSS, self._non_finite, what=what, metric=bad, step=step
            )
        if LOSS not in measured:
            return None
        limit = self._recent.limit if self._spike != "ignore" else None
        if limit is not None and measured[LOSS] > limit:
            what = f"{LOSS} is {measured[LOSS]:.6g}, above the limit {limit:.6g} at step {step}"
            return self._failure(
                FailureReason.LOSS_SPIKE, self._spike, what=what, metric=LOSS, step=step
            )
        self._recent.add(measured[LOSS])
        self._good = max(self._good, step)
        return None

    def _failure(
        self, reason: FailureReason, action: str, *, what: str, metric: str, step: int
    ) -> Failure:
        window = None
        if action == "rollback" and step > self._good:
            # A program does not report positions in its data, so use steps instead.
            window = BadWindow(start=self._good, end=step, first_step=self._good + 1)
            what += f"; step {self._good} was good"
        return Failure(
            reason=reason,
            message=what,
            remedy=REMEDY,
            rank=0,
            step=step,
            metric=metric,
            bad_window=window,
        )
