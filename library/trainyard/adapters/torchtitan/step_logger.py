"""Logs torchtitan's metrics to the run, under the names that the built-in trainer uses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.run.session import Run

NAMES = {
    "loss_metrics/global_avg_loss": "train/loss",
    "loss_metrics/global_max_loss": "train/loss_max",
    "grad_norm": "train/grad_norm",
    "n_tokens_seen": "train/tokens",
    "tflops": "perf/model_tflops_per_device",
    "mfu(%)": "perf/mfu",
    "time_metrics/data_loading(%)": "perf/data_share",
    "memory/max_active(GiB)": "memory/peak_active_gib",
    "memory/max_reserved(GiB)": "memory/peak_reserved_gib",
    "memory/num_alloc_retries": "memory/allocation_retries",
    "memory/num_ooms": "memory/ooms",
    "validation_metrics/loss": "validation/loss",
}
"""Names of the run by names of torchtitan."""
PERCENT = "(%)"
"""Suffix of torchtitan's names of percentages; the run stores fractions instead."""
REPLACED = frozenset(
    {"throughput(tps)", "time_metrics/end_to_end(s)", "time_metrics/data_loading(s)"}
)
"""Values that `StepLogger` computes itself, over complete steps and without padded rows."""


WITH_PADDING = frozenset({"perf/model_tflops_per_device", "perf/mfu"})
"""Rates of torchtitan that also count padded rows."""


def renamed(values: Mapping[str, float]) -> dict[str, float]:
    """Return values under the run's names.

    The first learning rate becomes `train/lr`. Negative memory values are dropped; they mark memory
    that the device does not count. A name without a counterpart is kept (below `train/` if it has
    no group), unless it is a percentage. `REPLACED` values are dropped.
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        if name in REPLACED or (name.startswith("memory/") and value < 0):
            continue
        if name.startswith("lr/"):
            found.setdefault("train/lr", value)
        if name in NAMES:
            found[NAMES[name]] = value / 100 if name.endswith(PERCENT) else value
        elif not name.endswith(PERCENT):
            found[name if "/" in name else f"train/{name}"] = value
    return found


@dataclass(frozen=True)
class StepSize:
    """Size of a step over all ranks."""

    rows: int
    """Sequences, without padded rows."""
    tokens: int
    """Tokens of these sequences."""
    padded_rows: int
    micro_batches: int
    """Micro-batches that a rank loads in a step."""


class StepLogger:
    """Logger of torchtitan's metrics that also logs to the run.

    All ranks call it at the same steps. Rank 0 logs to the run.

    Args:
        inner: the recipe's own logger.
        run: the run of this process.
        size: size of a step.
    """

    def __init__(self, inner: Any, run: Run, *, size: StepSize) -> None:
        self._inner, self._run, self._size = inner, run, size
        self._logged_at = self._begun_at = time.perf_counter()
        self._steps = 0
        self._seconds = 0.0

    def begin_step(self) -> None:
        """Start the clock of a step; saves and validations between steps are not counted."""
        self._begun_at = time.perf_counter()
        self._steps += 1

    def end_step(self) -> None:
        """Add the time of a step."""
        self._seconds += time.perf_counter() - self._begun_at

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Log the values of a step or of a validation."""
        self._inner.log(metrics, step)
        values = renamed(metrics)
        if "train/loss" in values:
            waits = metrics["time_metrics/data_loading(s)"] * self._size.micro_batches
            values |= self._of_steps(values, step) | {"perf/data_seconds": waits}
        if self._run.rank == 0:
            self._run.log(values, step=step)

    def _of_steps(self, values: Mapping[str, float], step: int) -> dict[str, float]:
        """Return the values that are computed over the steps since the previous call."""
        now = time.perf_counter()
        seconds = self._seconds + now - self._begun_at
        rate = self._steps * self._size.tokens / (now - self._logged_at) / self._run.world_size
        real_share = self._size.rows / (self._size.rows + self._size.padded_rows)
        found = {name: values[name] * real_share for name in WITH_PADDING & values.keys()}
        found |= {
            "perf/step_seconds": seconds / self._steps,
            "perf/tokens_per_second_per_device": rate,
            "train/sequences": step * self._size.rows,
        }
        self._logged_at = self._begun_at = now
        self._steps, self._seconds = 0, 0.0
        return found

    def close(self) -> None:
        """Close the recipe's logger."""
        self._inner.close()
