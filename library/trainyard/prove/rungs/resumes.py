"""Chains of resumes: a job that is stopped and killed again and again on other numbers of slots."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from trainyard.client.errors import ConflictError
from trainyard.client.references import LAST
from trainyard.protocol.rest.attempts import AttemptView
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.states import JobState
from trainyard.prove.bench import Bench, CheckError, described
from trainyard.prove.course import Course
from trainyard.prove.figures import Figure, at_least, at_most, equal
from trainyard.prove.picture import DrawnLine, draw
from trainyard.prove.rungs.small_job import COMPARED, as_one_rank, one_rank, small_job

RESUMABLE = frozenset({JobState.STOPPED, JobState.CANCELLED})


FACTORS = (1, 4, 16)
"""Factors of the number of steps: a fast device ends a short job before a person could stop it."""


class EndedEarlyError(CheckError):
    """An attempt of a chain succeeded before it was ended."""


@dataclass(frozen=True)
class Link:
    """One attempt of a chain."""

    ranks: int
    end: Literal["stop", "kill", "finish"]
    """How the attempt ends: `stop` saves first; `kill` ends all processes without a save."""
    until: int
    """Step from which the attempt is ended."""


def links(slots: int, *, count: int, steps: int, seed: int) -> list[Link]:
    """Return the attempts of a chain; two in succession have different numbers of ranks.

    Half of the attempts but the last are killed, so they lose the steps since their last save.
    """
    interval = save_interval(count=count, steps=steps)
    drawn = random.Random(seed)
    found: list[Link] = []
    for index in range(count):
        ranks = slots if index == 0 else _other_ranks(drawn, found, slots=slots)
        end: Literal["stop", "kill", "finish"] = "stop" if index % 2 else "kill"
        # Near the middle of the attempt's share, and halfway between two saves: a kill loses steps.
        saves = steps * (2 * index + 1) // (2 * count) // interval
        until = saves * interval + interval // 2
        found.append(Link(ranks, end if index < count - 1 else "finish", until))
    return found


def _other_ranks(drawn: random.Random, found: Sequence[Link], *, slots: int) -> int:
    """Draw a number of ranks, among those that the chain has used least."""
    used = Counter(link.ranks for link in found)
    others = [n for n in range(1, slots + 1) if n != found[-1].ranks] or [1]
    least = min(used[n] for n in others)
    return drawn.choice([n for n in others if used[n] == least])


def save_interval(*, count: int, steps: int) -> int:
    """Return the steps between two saves of a chain: about three saves for each attempt."""
    return max(2, steps // (count * 3))


def chain(bench: Bench, *, count: int, steps: int, seed: int) -> list[Figure]:
    """End and resume a job `count - 1` times, and compare it with one rank without interruption.

    A job that finishes before it is ended is tried again with more steps.
    """
    for factor in FACTORS:
        try:
            return _chain(bench, count=count, steps=steps * factor, seed=seed)
        except EndedEarlyError as error:
            early = error
            bench.commands.clear()  # the next try has its own
    raise early


def _chain(bench: Bench, *, count: int, steps: int, seed: int) -> list[Figure]:
    expected = one_rank(bench, steps=steps)
    wanted = links(bench.slots, count=count, steps=steps, seed=seed)
    interval = save_interval(count=count, steps=steps)
    document = small_job(
        bench,
        f"chain-{seed}-{steps}",
        steps=steps,
        ranks=wanted[0].ranks,
        checkpoint={"interval_steps": interval, "interval_seconds": 0, "keep_latest_k": 2},
    )
    job = bench.submit(document)
    bench.commands += _commands(wanted)
    job = bench.succeeded(bench.watch(job.id, lambda now: _advance(bench, now, wanted)))
    attempts = sorted(bench.yard.attempts(job.id), key=lambda each: each.number)
    checked = [each.continuity for each in attempts if each.continuity is not None]
    lost = sum(each.last_step > after.start_step for each, after in pairwise(attempts))
    found = bench.course(job.id, *COMPARED)
    bench.draw(f"resumes-chain-{seed}", _picture(found, expected, attempts))
    return [
        *as_one_rank(bench, found, expected, steps=steps),
        equal("attempts", len(attempts), count),
        equal(
            "ranks",
            _ranks([each.layout.world_size for each in attempts]),
            _ranks([link.ranks for link in wanted]),
        ),
        at_least("attempts_that_lost_steps", lost, 1),
        at_most("resumes_that_are_not_continuous", sum(not each.ok for each in checked), 0),
        equal("resumes_with_a_continuity_check", len(checked), count - 1),
    ]


def _picture(found: Course, expected: Course, attempts: Sequence[AttemptView]) -> str:
    """Draw the losses of each attempt over those of one rank."""
    losses = found.of("train/loss")
    segments = [
        DrawnLine(
            f"{attempt.number}: {attempt.layout_name}",
            [(s, losses[s]) for s in sorted(losses) if found.attempts.get(s) == attempt.number],
        )
        for attempt in attempts
    ]
    return draw(
        DrawnLine("one rank", sorted(expected.of("train/loss").items())),
        [segment for segment in segments if segment.points],
        caption="Loss of a chain of resumes, and of one rank without interruption",
    )


def _ranks(counts: list[int]) -> str:
    return " -> ".join(map(str, counts))


def _advance(bench: Bench, job: JobView, wanted: list[Link]) -> bool:
    """Take the next action of a chain, if it is due; return whether the chain has ended.

    The state of the job alone decides, so that a chain continues after a crash of `prove`.
    """
    if job.pending is not None:
        return False
    number = 0 if job.current_attempt is None else job.current_attempt.number
    if job.state in RESUMABLE and number < len(wanted):
        bench.yard.resume(job.id, world_size=wanted[number].ranks)
        return False
    if job.state is JobState.SUCCEEDED and number < len(wanted):
        raise EndedEarlyError(f"{described(job)}; attempt {number} finished before its end")
    if job.state is not JobState.RUNNING:
        return job.state in {JobState.SUCCEEDED, JobState.FAILED, *RESUMABLE}
    link = wanted[number - 1]
    if link.end != "finish" and job.progress.step >= link.until and _has_saved(bench, job, number):
        _end(bench, job, link)
    return False


def _has_saved(bench: Bench, job: JobView, number: int) -> bool:
    """Return whether an attempt has committed a checkpoint; without one, a kill loses all of it."""
    return any(each.attempt == number for each in bench.yard.checkpoints(job.id))


def _commands(wanted: Sequence[Link]) -> list[str]:
    """Return the commands that repeat the ends and resumes of a chain by hand.

    They name the newest job, because a job that was submitted by hand has the same name as the
    chain itself.
    """
    found: list[str] = []
    for link, after in pairwise(wanted):
        end = "kill" if link.end == "kill" else "stop"
        found.append(f"trainyard {end} {LAST}  # from step {link.until} on")
        found.append(f"trainyard resume {LAST} --world-size {after.ranks}")
    return found


def _end(bench: Bench, job: JobView, link: Link) -> None:
    end = bench.yard.cancel if link.end == "kill" else bench.yard.stop
    # The attempt may have ended just now; then its state decides what follows.
    with suppress(ConflictError):
        end(job.id, reason="a chain of resumes of `trainyard prove`")
