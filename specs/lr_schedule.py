"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from specs.job import JobSpec


def learning_rate(spec: JobSpec, step: int) -> float:
    """Return the rate of the optimizer step that completes `step` (counted from 1).

    Warmup rises linearly and reaches the peak at `warmup_steps`. `cosine` then follows half a
    cosine to `min_lr_ratio` at the total (Loshchilov and Hutter, SGDR, 2017, without restarts);
    `warmup_stable_decay` holds the peak and decays over the last `decay_steps` (Hu et al.,
    MiniCPM, 2024). After the total the rate stays at its end.
    """
    schedule, peak = spec.lr_schedule, spec.optimizer.lr
    total, warmup = spec.schedule_steps, schedule.warmup_steps
    if step < warmup:
        return peak * step / warmup
    if schedule.name == "cosine":
        start = warmup
    else:
        decay = schedule.decay_steps if schedule.decay_steps is not None else total // 5
        start = max(warmup, total - decay)
    # A decay of no length never begins: the rate stays at its peak.
    progress = min(max(step - start, 0) / (total - start), 1.0) if start < total else 0.0
    shape = "cosine" if schedule.name == "cosine" else schedule.decay_shape
    left = {
        "linear": 1 - progress,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "sqrt": 1 - math.sqrt(progress),
    }[shape]
    return peak * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * left)
