"""The figures of `run.log`'s calls, printed by both benchmarks of this folder."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import emit

LONGEST_CALL_SECONDS = 1e-3


def emit_calls(
    benchmark: str, wall: NDArray[np.float64], processor: NDArray[np.float64], **details: object
) -> bool:
    """Print the times of calls; return whether the 99th percentile reaches its target.

    Args:
        benchmark: name of the measurement.
        wall: seconds of each call, `[calls]`.
        processor: seconds of processor time of each call, `[calls]`.
        details: further fields of the line.
    """
    return emit(
        benchmark,
        figure=float(np.quantile(wall, 0.99)),
        unit="s (p99)",
        target=LONGEST_CALL_SECONDS,
        at_least=False,
        packages=("numpy",),
        calls=len(wall),
        median=float(f"{np.median(wall):.3g}"),
        longest=float(f"{wall.max():.3g}"),
        p99_of_processor_time=float(f"{np.quantile(processor, 0.99):.3g}"),
        longest_of_processor_time=float(f"{processor.max():.3g}"),
        **details,
    )
