"""Schedule of a pipeline: the stages of each rank, and the time for which ranks wait.

Planner and trainer share these rules: the planner computes the cost of a schedule, and the trainer
runs it. p ranks share one pipeline. Each rank runs v stages and, in one run of the schedule, m
micro-batches.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

PipelineSchedule = Literal[
    "GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"
]
INTERLEAVED = ("Interleaved1F1B", "InterleavedZeroBubble")
"""Schedules with any number of stages per rank from two on."""
SPLIT_BACKWARD = ("InterleavedZeroBubble", "ZBVZeroBubble")
"""Schedules that compute the gradients of inputs and those of weights at different times."""


def rank_of_stage(schedule: PipelineSchedule, index: int, *, pp: int) -> int:
    """Return the pipeline rank that runs a stage.

    Stages are assigned to ranks round-robin, or in a V for `ZBVZeroBubble`. In a V each rank has
    two stages; rank 0 has the first stage and the last.
    """
    if schedule == "ZBVZeroBubble":
        return min(index, 2 * pp - 1 - index)
    return index % pp


def runs_of(rounds: int, microbatches: int) -> int:
    """Return the number of runs in a step, in which each rank has `rounds` micro-batches."""
    return -(-rounds // microbatches)


def quickest(schedule: PipelineSchedule, rounds: int, *, pp: int, stages_per_rank: int) -> int:
    """Return the m (micro-batches per run) with which a step takes the least time.

    Of several such m, return the one with the fewest runs, because each run reduces gradients
    once more. For a given number of runs, the smallest sufficient m is best, because a larger m
    never shortens a run.
    """
    best, shortest = rounds, math.inf
    for runs in range(1, rounds + 1):
        if 3 * stages_per_rank * rounds + runs * (pp - 1) >= shortest:
            break  # more runs are slower, because each run waits for at least p - 1
        m = next_runnable(schedule, -(-rounds // runs), pp=pp)
        wait = waiting(schedule, pp=pp, stages_per_rank=stages_per_rank, microbatches=m)
        time = runs * (3 * stages_per_rank * m + wait)
        if time < shortest:
            best, shortest = m, time
    return best


def next_runnable(schedule: PipelineSchedule, microbatches: int, *, pp: int) -> int:
    """Return the smallest m that can run and is at least `microbatches`.

    It exceeds `microbatches` by at most p - 1.
    """
    return next(m for m in itertools.count(microbatches) if can_run(schedule, m, pp=pp))


def can_run(schedule: PipelineSchedule, microbatches: int, *, pp: int) -> bool:
    """Return whether a schedule can run this number of micro-batches in one run.

    1F1B needs one micro-batch per stage. The interleaved schedules run the micro-batches in
    max(1, m // p) groups of equal size. The other schedules accept any number
    (torch.distributed.pipelining.schedules, 2.13).
    """
    if schedule in INTERLEAVED:
        return microbatches % max(1, microbatches // pp) == 0
    return microbatches >= least_microbatches(schedule, pp=pp)


def least_microbatches(schedule: PipelineSchedule, *, pp: int) -> int:
    """Return the minimum number of micro-batches in one run of a schedule."""
    return pp if schedule == "1F1B" else 1


def bubble_share(
    schedule: PipelineSchedule, *, pp: int, stages_per_rank: int, microbatches: int
) -> float:
    """Return the share of a run during which a rank waits, if all stages take equal time."""
    wait = waiting(schedule, pp=pp, stages_per_rank=stages_per_rank, microbatches=microbatches)
    return wait / (3 * stages_per_rank * microbatches + wait)


def waiting(schedule: PipelineSchedule, *, pp: int, stages_per_rank: int, microbatches: int) -> int:
    """Return the time for which each rank waits in a run, in forward passes of a stage.

    A backward pass takes as long as two forward passes, and each half of a split backward pass
    takes as long as one forward pass. So a rank works for 3 v m. For GPipe, 1F1B and interleaved
    schedules with p or more micro-batches, the formulas are from Narayanan et al. 2021, section
    2.2. For ZB-H1 with v stages, they are from Qi et al. 2023, table 2. ZB-V has no bubble in that
    table, because its iterations overlap. Here they cannot overlap, because all ranks wait for the
    gradient norm. With fewer than p micro-batches, a rank also waits until the first micro-batch
    returns. The terms for this wait come from a simulation of the schedules; a test repeats the
    simulation.
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
    """Return the maximum number of forward passes on a rank whose backward pass is still to come.

    GPipe holds all forward passes of a run. 1F1B holds one for this rank's stage and one for each
    later stage. The interleaved schedules hold (v - 1) g + k (p - 1 - rank) + 1, for groups of g
    micro-batches. k is 2, or 1 with a zero bubble. A schedule with a zero bubble also holds the
    weight gradients of `rank` backward passes. ZB-V holds up to 2 p. No rank holds more than v m.
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
    """Return the default of v, for a spec that does not give stages."""
    return 1 if schedule in {"GPipe", "1F1B"} else 2


def takes_stages(schedule: PipelineSchedule, stages: int, *, pp: int) -> bool:
    """Return whether a schedule can run this total number of stages."""
    least = default_stages_per_rank(schedule) * pp
    if schedule in INTERLEAVED:
        return stages % pp == 0 and stages >= least
    return stages == least


def legal_stages(schedule: PipelineSchedule, *, pp: int) -> str:
    """Return a phrase for the numbers of stages that a schedule can run."""
    least = default_stages_per_rank(schedule) * pp
    if schedule in INTERLEAVED:
        return f"a multiple of {pp} from {least} on"
    return str(least)
