"""What must agree between the fields that say which checkpoints are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from specs.job import JobSpec
from specs.problems import Problem


def _retention(spec: JobSpec) -> Iterator[Problem]:
    section = spec.checkpoint
    every, interval = section.keep_every_steps, section.interval_steps
    if every and not section.keep_latest_k:
        yield Problem(
            pointer="/checkpoint/keep_every_steps",
            detail="goes with keep_latest_k, without which every checkpoint is kept",
        )
    elif every and interval and every % interval:
        nearest = sorted({max(interval, every // interval * interval), every + -every % interval})
        yield Problem(
            pointer="/checkpoint/keep_every_steps",
            detail=f"keep_every_steps={every} is no multiple of interval_steps={interval}; "
            f"nearest legal: {', '.join(map(str, nearest))}",
        )


RETENTION: tuple[Callable[[JobSpec], Iterator[Problem]], ...] = (_retention,)
