"""Value-by-value comparison between the newest attempt and the next attempt."""

from __future__ import annotations

from server.jobs.jobs.next_attempt import Baseline, NextAttempt
from trainyard.base.problems import SpecError
from trainyard.planner.plan import plan
from trainyard.planner.results import Plan, ProgramPlan
from trainyard.protocol.manifest import TrainState
from trainyard.protocol.rest.resume import Change
from trainyard.spec.auto import resolved
from trainyard.spec.job import JobSpec
from trainyard.spec.layout import Layout
from trainyard.spec.sections.checkpoint import CheckpointSection

MIB = 2**20
GIB = 2**30
OF_THE_SAVE = "as in the save"


def compare(
    baseline: Baseline,
    following: NextAttempt,
    *,
    last_step: int,
    parent_step: int,
    state: TrainState | None,
    saves_first: bool,
) -> tuple[Change, ...]:
    """Return the compared values, with changed values first.

    Args:
        baseline: settings of the newest attempt.
        following: settings of the next attempt.
        last_step: step that the newest attempt reached.
        parent_step: step of the parent checkpoint; 0 for a fresh start.
        state: counters in the parent checkpoint; None for a fresh start, a fork's origin or a
            program.
        saves_first: whether the running attempt saves first, and the job resumes from that save.
    """
    now = following.plan.device
    was = baseline.device or now
    same: dict[str, str] = {}
    if isinstance(following.plan, ProgramPlan):
        step = parent_step
        left = _of_program(baseline.effective.on_layout(baseline.layout), baseline.layout)
        right = _of_program(following.effective, following.plan.layout)
    else:
        before = resolved(baseline.effective, was, baseline.layout)
        try:
            old = plan(before)
        except SpecError:  # an earlier version accepted this spec, the current version does not
            old = None
        step = last_step if saves_first else parent_step
        left = _of_job(before, old, step)
        right = _of_job(resolved(following.effective, now), following.plan, step)
        # Counters of the origin of a fork are in the other job's manifest.
        if state is not None or parent_step == 0:
            position, tokens = (state.data.position, state.tokens) if state is not None else (0, 0)
            same = {"data position": str(position), "tokens so far": f"{tokens:,}"}
    steps = (str(last_step), str(step))
    if saves_first:  # the attempt continues to train until the save
        steps, same = (OF_THE_SAVE, OF_THE_SAVE), dict.fromkeys(same, OF_THE_SAVE)
    lines = [("step", *steps), ("device", was, now)]
    lines += [(name, left[name], right[name]) for name in left]
    lines += [(name, value, value) for name, value in same.items()]
    changes = [Change(name=n, before=b, after=a, changed=b != a) for n, b, a in lines]
    return tuple(sorted(changes, key=lambda change: not change.changed))


def _of_program(spec: JobSpec, layout: Layout) -> dict[str, str]:
    return {
        "world size": str(spec.resources.world_size),
        **({"layout": str(layout)} if spec.has_axes else {}),
        "nodes": str(spec.resources.nodes or "as few as fit"),
        "steps": str(spec.total_steps or "unknown"),
        "retries": str(spec.retry.max_retries),
    }


def _of_job(spec: JobSpec, planned: Plan | None, step: int) -> dict[str, str]:
    batch = planned.batch if planned is not None else None
    return {
        "world size": str(spec.resources.world_size),
        "layout": planned.name if planned is not None else "unknown",
        "micro-batch size": str(spec.training.micro_batch_size),
        "micro-batches of a rank and step": str(batch.rounds) if batch is not None else "unknown",
        "idle share": f"{100 * batch.idle_share:.1f} %" if batch is not None else "unknown",
        "memory of a slot": "unknown" if planned is None else _size(planned.memory.total),
        "nodes": str(spec.resources.nodes or "as few as fit"),
        "steps": str(spec.training.steps),
        "activation checkpointing": spec.activation_checkpoint.mode,
        "compilation": spec.compile.backend if spec.compile.enabled is True else "off",
        "checkpoint interval": _interval(spec.checkpoint),
        "asynchronous saves": spec.checkpoint.async_mode,
        "steps between logged values": str(spec.training.log_every_steps),
        "retries": str(spec.retry.max_retries),
        "global batch size": str(spec.training.global_batch_size),
        "sequence length": str(spec.training.seq_len),
        "learning rate of the next step": f"{spec.schedule.rate(step + 1):.6g}",
        "end of the schedule": f"step {spec.schedule_steps}",
        "seed": str(spec.training.seed),
    }


def _size(count: int) -> str:
    """Return a number of bytes as text in MiB, or in GiB from 1 GiB on."""
    return f"{count / MIB:.1f} MiB" if count < GIB else f"{count / GIB:.2f} GiB"


def _interval(section: CheckpointSection) -> str:
    given = {"steps": section.interval_steps, "s": section.interval_seconds}
    return " or ".join(f"{value:g} {unit}" for unit, value in given.items() if value) or "none"
