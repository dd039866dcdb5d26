"""The timetable of a pipeline: which rank runs which stage when, and how long ranks wait.

Planner and trainer share the rules: one computes the cost of a schedule, the other runs it.
p ranks share one pipeline; each runs v stages and, in one run of the schedule, m micro-batches.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

PipelineSchedule = Literal[
    "GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"
]
INTERLEAVED = ("Interleaved1F1B", "InterleavedZeroBubble")
"""Schedules whose ranks run any number of stages from two on."""
SPLIT_BACKWARD = ("InterleavedZeroBubble", "ZBVZeroBubble")
"""Schedules that compute the gradients of inputs and of weights at different times."""


def rank_of_stage(schedule: PipelineSchedule, index: int, *, pp: int) -> int:
    """Return the pipeline rank of a stage: in turn, or there and back for `ZBVZeroBubble`.

    There and back, rank 0 has the first and the last stage, and every rank two.
    """
    if schedule == "ZBVZeroBubble":
        return min(index, 2 * pp - 1 - index)
    return index % pp


def runs_of(rounds: int, microbatches: int) -> int:
    """Return the runs of a schedule in a step of `rounds` micro-batches a rank."""
    return -(-rounds // microbatches)


def quickest(schedule: PipelineSchedule, rounds: int, *, pp: int, stages_per_rank: int) -> int:
    """Return the m with which a step of `rounds` micro-batches takes the least time.

    Among equals it is the one with the fewest runs, because each run reduces gradients anew. For a
    given number of runs the least sufficient m is best: a larger one never shortens a run.
    """
    best, shortest = rounds, math.inf
    for runs in range(1, rounds + 1):
        if 3 * stages_per_rank * rounds + runs * (pp - 1) >= shortest:
            break  # no run waits less than p - 1
        m = next_runnable(schedule, -(-rounds // runs), pp=pp)
        wait = waiting(schedule, pp=pp, stages_per_rank=stages_per_rank, microbatches=m)
        time = runs * (3 * stages_per_rank * m + wait)
        if time < shortest:
            best, shortest = m, time
    return best


def next_runnable(schedule: PipelineSchedule, microbatches: int, *, pp: int) -> int:
    """Return the least runnable number that is not below the given one; at most p - 1 above it."""
    return next(m for m in itertools.count(microbatches) if can_run(schedule, m, pp=pp))


def can_run(schedule: PipelineSchedule, microbatches: int, *, pp: int) -> bool:
    """Return whether a schedule can run this number of micro-batches at once.

    1F1B needs one for each stage. The interleaved ones run them in max(1, m // p) equal groups.
    The others take any number (torch.distributed.pipelining.schedules, 2.13).
    """
    if schedule in INTERLEAVED:
        return microbatches % max(1, microbatches // pp) == 0
    return microbatches >= least_microbatches(schedule, pp=pp)


def least_microbatches(schedule: PipelineSchedule, *, pp: int) -> int:
    """Return the fewest micro-batches with which a schedule runs."""
    return pp if schedule == "1F1B" else 1


def bubble_share(
    schedule: PipelineSchedule, *, pp: int, stages_per_rank: int, microbatches: int
) -> float:
    """Return the share of a run's time in which a rank waits, were all stages equally long."""
    wait = waiting(schedule, pp=pp, stages_per_rank=stages_per_rank, microbatches=microbatches)
    return wait / (3 * stages_per_rank * microbatches + wait)


def waiting(schedule: PipelineSchedule, *, pp: int, stages_per_rank: int, microbatches: int) -> int:
    """Return how long each rank waits in a run, in forward passes of a stage.

    Backward takes two of them, or one for each half; a rank works for 3 v m. GPipe, 1F1B and
    interleaved ones with p micro-batches or more: Narayanan et al. 2021, section 2.2. ZB-H1 with v
    stages: Qi et al. 2023, table 2. ZB-V has no bubble there because its iterations overlap, as
    they cannot where all ranks wait for the norm of the gradient. With fewer micro-batches a rank
    waits until the first one returns; those terms come from simulating the schedules, which a test
    repeats.
    """
    few = max(0, pp - microbatches)
    match schedule:
        case "GPipe" | "1F1B":
            return 3 * (pp - 1)
        case "Interleaved1F1B":
            return 3 * (pp - 1) + 3 * (stages_per_rank - 1) * few
        case "InterleavedZeroBubble":
            very_few = max(0, pp - 2 * microbatches)
            return pp - 1 + stages_per_rank * few + (stages_per_rank - 1) * very_few
        case "ZBVZeroBubble":
            return max(pp - 1, 4 * (pp - 1) - 2 * (microbatches - 1))


def in_flight(
    schedule: PipelineSchedule, *, pp: int, stages_per_rank: int, microbatches: int, rank: int
) -> int:
    """Return the most forward passes of stages that a rank holds before their backward.

    GPipe holds all of them; 1F1B as many as there are stages from this one on. The interleaved
    ones run (v - 1) g + k (p - 1 - rank) ahead, for groups of g micro-batches and k = 2, or 1 with
    a zero bubble, where the weights' half of `rank` backward passes waits too. ZB-V holds 2 p, or
    somewhat less where there are fewer than 2 p - 1 micro-batches.
    """
    most = stages_per_rank * microbatches
    group = microbatches // max(1, microbatches // pp)
    ahead = (stages_per_rank - 1) * group
    match schedule:
        case "GPipe":
            return most
        case "1F1B":
            return min(most, pp - rank)
        case "Interleaved1F1B":
            return min(most, ahead + 2 * (pp - 1 - rank) + 1)
        case "InterleavedZeroBubble":
            return min(most, ahead + pp)
        case "ZBVZeroBubble":
            return min(most, 2 * pp)


def default_stages_per_rank(schedule: PipelineSchedule) -> int:
    """Return the default of v, for a spec without stages."""
    return 1 if schedule in {"GPipe", "1F1B"} else 2


def takes_stages(schedule: PipelineSchedule, stages: int, *, pp: int) -> bool:
    """Return whether a schedule can run this total number of stages."""
    least = default_stages_per_rank(schedule) * pp
    if schedule in INTERLEAVED:
        return stages % pp == 0 and stages >= least
    return stages == least


def legal_stages(schedule: PipelineSchedule, *, pp: int) -> str:
    """Return words for the numbers of stages that a schedule can run."""
    least = default_stages_per_rank(schedule) * pp
    if schedule in INTERLEAVED:
        return f"a multiple of {pp} from {least} on"
    return str(least)
