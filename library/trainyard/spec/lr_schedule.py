"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from trainyard.spec.job import JobSpec


def learning_rate(spec: JobSpec, step: int) -> float:
    """Return the rate of the optimizer step that completes `step` (counted from 1).

    Warmup rises linearly and reaches the peak at its end. `cosine` then follows half a cosine to
    `min_lr_ratio` at the total (Loshchilov and Hutter, SGDR, 2017, without restarts);
    `warmup_stable_decay` holds the peak and decays over its last part (Hu et al., MiniCPM, 2024).
    After the total the rate stays at its end.

    All is counted in tokens, as integers: a schedule given in steps and the same one given in
    tokens agree bit by bit.
    """
    schedule, peak = spec.lr_schedule, spec.optimizer.lr
    seen = step * spec.tokens_per_step
    total, warmup = spec.schedule_tokens, warmup_tokens(spec)
    if seen < warmup:
        return peak * (seen / warmup)
    start = warmup if schedule.name == "cosine" else max(warmup, total - decay_tokens(spec))
    # A decay of no length never begins: the rate stays at its peak.
    progress = min(max(seen - start, 0) / (total - start), 1.0) if start < total else 0.0
    shape = "cosine" if schedule.name == "cosine" else schedule.decay_shape
    left = {
        "linear": 1 - progress,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "sqrt": 1 - math.sqrt(progress),
    }[shape]
    return peak * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * left)


def warmup_tokens(spec: JobSpec) -> int:
    """Return the tokens in which the rate rises."""
    schedule = spec.lr_schedule
    if schedule.warmup_tokens is not None:
        return schedule.warmup_tokens
    return schedule.warmup_steps * spec.tokens_per_step


def decay_tokens(spec: JobSpec) -> int:
    """Return the tokens in which `warmup_stable_decay` falls, if it finds room for them."""
    schedule = spec.lr_schedule
    if schedule.decay_tokens is not None:
        return schedule.decay_tokens
    if schedule.decay_steps is not None:
        return schedule.decay_steps * spec.tokens_per_step
    return spec.schedule_tokens // 5
