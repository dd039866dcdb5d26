"""The figures of `run.log`'s calls, which both benchmarks of this folder print."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import emit

LONGEST_CALL_SECONDS = 1e-3


def emit_calls(
    benchmark: str, wall: NDArray[np.float64], processor: NDArray[np.float64], **details: object
) -> bool:
    """Print how long calls took, and return whether the 99th percentile reaches its target.

    Args:
        benchmark: what was measured.
        wall: seconds of each call, `[calls]`.
        processor: seconds of processor time of each call, `[calls]`.
        details: what else belongs to the figure.
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
