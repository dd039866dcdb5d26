"""Checks of saves in each mode: after a kill, another attempt resumes from the save on a CPU."""

from __future__ import annotations

from typing import Any

from tools.gpu_check.check import Here
from tools.gpu_check.launch import Attempt, Job, run_until
from trainyard.prove.figures import Figure, at_most, equal, largest_difference, reported

INTERVAL = 10
AFTER = 10
"""Number of steps that the second attempt trains."""
FIRST_LOSS, LOSSES = 1e-4, 1e-3
"""Maximum relative differences from the CPU's losses: of the first loss after the resume, and of
every loss."""


def killed_and_resumed_on_a_cpu(here: Here, mode: str) -> list[Figure]:
    """Kill an attempt on the device right after a commit, resume it on the CPU, compare losses.

    The device computes the steps before the commit, and the CPU the later steps. The reference is a
    single run on the CPU.
    """
    until = INTERVAL + AFTER
    endless: dict[str, dict[str, Any]] = {
        "training": {"steps": 100_000},
        "checkpoint": {"interval_steps": INTERVAL, "async_mode": mode},
    }
    job = Job.small(here.scratch / "tested", here.device, **endless)
    killed = job.prepare(1)
    run_until(killed, lambda attempt: bool(attempt.committed()), seconds=90)
    saved = killed.committed()[0]
    on_cpu = Job.small(
        here.scratch / "tested",
        "cpu",
        training=endless["training"],
        checkpoint={"interval_steps": 0},
    )
    resumed = on_cpu.run(2, resume=saved, steps=until)
    reference = Job.small(
        here.scratch / "reference",
        "cpu",
        training=endless["training"],
        checkpoint={"interval_steps": 0},
    ).run(1, steps=until)
    return [
        equal("saved_step", saved.train_state.step, INTERVAL),
        equal("resumed_steps", _steps(resumed), str(list(range(INTERVAL + 1, until + 1)))),
        equal("same_sequences", _after(resumed) == _after(reference), expected=True),
        *_losses(resumed, reference),
        reported("save_seconds", saved.save_seconds),
        reported("writers", len(saved.writers)),
    ]


def _steps(attempt: Attempt) -> str:
    return str(sorted(attempt.values("train/loss")))


def _after(attempt: Attempt) -> dict[int, str | None]:
    return {step: digest for step, digest in attempt.digests().items() if step > INTERVAL}


def _losses(resumed: Attempt, reference: Attempt) -> list[Figure]:
    found, expected = resumed.values("train/loss"), reference.values("train/loss")
    steps = range(INTERVAL + 1, INTERVAL + AFTER + 1)
    first = largest_difference([found[INTERVAL + 1]], [expected[INTERVAL + 1]])
    every = largest_difference([found[s] for s in steps], [expected[s] for s in steps])
    moved = largest_difference([expected[INTERVAL + 1]], [expected[1]])
    return [
        at_most("first_loss_off", first, FIRST_LOSS),
        at_most("losses_off", every, LOSSES),
        reported("loss_moved_before_the_save", moved),
    ]
