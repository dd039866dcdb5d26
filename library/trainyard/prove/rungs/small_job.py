"""The small job that layouts and resumes train, and its comparison with one rank."""

from __future__ import annotations

import math
from typing import Any

from trainyard.prove.bench import Bench
from trainyard.prove.course import Course, compared_steps, differing_steps
from trainyard.prove.figures import Figure, at_most, equal

LOSS = {"cpu": 1e-5, "cuda": 1e-4}
"""Maximum relative difference between two losses of the same step in float32. Layouts add the same
numbers in another order; GPUs also choose other kernels for other shapes."""
BATCH = 8
"""Sequences of a step; the number of slots if that is larger."""
MICRO_BATCH = 32
"""Maximum number of sequences in a forward pass of the reference."""
COMPARED = ("train/loss", "train/lr", "train/tokens")


def small_job(
    bench: Bench,
    name: str,
    *,
    steps: int,
    ranks: int,
    total_steps: int | None = None,
    micro_batch_size: int | None = None,
    axes: dict[str, Any] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """Return the spec of a small job in float32 with dropout, which records every step.

    Args:
        bench: the slots under test.
        name: name of the job, without its prefix.
        steps: number of steps.
        ranks: number of ranks.
        total_steps: end of the learning-rate schedule; by default `steps`.
        micro_batch_size: sequences of a forward pass; by default legal on every number of slots.
        axes: section `parallelism`.
        sections: further sections.
    """
    batch = max(BATCH, bench.slots)
    return {
        "name": f"prove-{name}",
        "model": {"size": "debug", "n_layers": 2, "dropout": 0.1},
        "data": {"max_tokens": 200_000},
        "training": {
            "steps": steps,
            "seq_len": 64,
            "global_batch_size": batch,
            "micro_batch_size": micro_batch_size or batch // bench.slots,
            "log_every_steps": 1,
        },
        "optimizer": {"lr": 1e-3},
        "lr_schedule": {"warmup_steps": 5, "total_steps": total_steps or steps},
        "parallelism": axes or {},
        "compile": {"enabled": False},
        "checkpoint": {"interval_steps": 0, "interval_seconds": 0, "preflight": False},
        "retry": {"max_retries": 0},
        "resources": {"world_size": ranks, "device": bench.device},
        **sections,
    }


def one_rank(bench: Bench, *, steps: int) -> Course:
    """Return the course of the small job on one rank, which all checks of a run share.

    Raises:
        CheckError: the job did not succeed.
    """
    # One rank takes many sequences at a time, so that it keeps up with many.
    document = small_job(
        bench,
        f"one-rank-{steps}",
        steps=steps,
        ranks=1,
        micro_batch_size=min(MICRO_BATCH, max(BATCH, bench.slots)),
    )
    return bench.course(bench.reference(document).id, *COMPARED)


def baseline(bench: Bench, *, steps: int) -> list[Figure]:
    """Train the small job on one rank; its loss falls, so a comparison with it is not empty."""
    losses = one_rank(bench, steps=steps).of("train/loss")
    ratio = losses.get(steps, math.nan) / losses.get(1, math.nan)
    return [
        equal("recorded_steps", len(losses), steps),
        at_most("last_loss_of_first", ratio, 0.95),
    ]


def as_one_rank(bench: Bench, found: Course, expected: Course, *, steps: int) -> list[Figure]:
    """Compare the course of a job with that of one rank: sequences, learning rates and losses."""
    return [
        equal("compared_steps", compared_steps(found, expected, "train/loss", steps=steps), steps),
        at_most(
            "steps_with_other_sequences",
            differing_steps(found.digests, expected.digests, steps=steps),
            0,
        ),
        at_most("learning_rate_off", found.off(expected, "train/lr", steps=steps), 0.0),
        at_most("tokens_off", found.off(expected, "train/tokens", steps=steps), 0.0),
        at_most("loss_off", found.off(expected, "train/loss", steps=steps), LOSS[bench.device]),
    ]
