"""Renders one job: state, progress, attempts and their lineage, failure, next commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from trainyard.cli import formats
from trainyard.cli.output import facts, heading, state_text
from trainyard.cli.table import Listing
from trainyard.protocol.rest.attempts import AttemptNodeView, AttemptView
from trainyard.protocol.rest.jobs import JobSummary, JobView, NextAction, Progress
from trainyard.protocol.states import AttemptNodeState, AttemptOutcome, JobState
from trainyard.protocol.user_accounts.views import BUILT_IN_USER
from trainyard.run.fact_types.fact_records import FactValue
from trainyard.spec.job import DEFAULT_PROJECT
from trainyard.spec.sections.resources import priority_words

MAX_FACTS = 40
"""Maximum number of values of a configuration, and of a summary, in `show`."""
MAX_STRAGGLERS = 4
"""Maximum number of stragglers in `show`, the costliest first."""


def job_line(job: JobSummary) -> Text:
    """Return a job on one line: name, state, id, reason."""
    line = Text.assemble((job.name, "bold"), "  ", state_text(job.state), "  ", (job.id, "dim"))
    return line.append(f"  {job.reason}") if job.reason else line


def progress_words(progress: Progress, state: JobState) -> str:
    """Return `step 340/1,000 (34 %)  loss 2.31  12.3k tokens/s  2m 10s left`."""
    running = state == JobState.RUNNING
    if not formats.has_step(progress, state):
        parts = ["no step reported"]
    elif progress.steps is not None:
        share = progress.step / progress.steps
        parts = [f"step {progress.step:,}/{progress.steps:,} ({formats.share(share)})"]
    else:
        parts = [f"step {progress.step:,}"]
    if progress.loss is not None:
        parts.append(f"loss {formats.number(progress.loss)}")
    if running and progress.tokens_per_second is not None:
        parts.append(f"{formats.short(progress.tokens_per_second)} tokens/s")
    if running and progress.seconds_left is not None:
        parts.append(f"{formats.duration(progress.seconds_left)} left")
    return "  ".join(parts)


def draw_show(job: JobView, attempts: Sequence[AttemptView], *, name: str) -> RenderableType:
    """Return the details of a job: state, progress, attempts and their lineage, next commands.

    The commands refer to the job as `name`, which is the job's id if other jobs have the same name.
    """
    attempt = job.current_attempt
    running = job.state == JobState.RUNNING
    rows = facts(
        [
            ("id", job.id),
            ("about", job.description),
            ("tags", ", ".join(job.tags)),
            ("owner", job.owner if job.owner != BUILT_IN_USER else None),
            ("project", job.project if job.project != DEFAULT_PROJECT else None),
            ("state", state_text(job.state).append(f"  {_why(job)}", style="default")),
            ("progress", progress_words(job.progress, job.state)),
            ("phase", job.progress.phase if running else None),
            ("saves", _failed_save(attempt)),
            ("slow", _stragglers(attempt)),
            ("imported", _import(job)),
            ("runs as", _runs_as(job)),
            ("size", _size_change(job)),
            ("priority", priority_words(job.priority) if job.imported is None else None),
            ("device", attempt.device if attempt and job.imported is None else None),
            ("auto", formats.auto(attempt.auto) if attempt else None),
            ("forked from", _ancestor(job)),
            ("submitted", f"{formats.date(job.created_at)} ({formats.age(job.created_at)} ago)"),
            ("ended", formats.date(job.ended_at) if job.ended_at else None),
        ]
    )
    parts: list[RenderableType] = [Text(job.name, style="bold"), rows]
    if job.facts is not None:
        parts += _section("Configuration", job.facts.config)
        parts += _section("Summary", job.facts.summary)
    if job.pending:
        launch = f"{job.pending.cause} as {job.pending.layout}, requested by {job.pending.actor}"
        parts += [heading("Waits for launch"), Text(f"  {launch}")]
    if attempts and job.imported is None:
        parts += [heading("Attempts"), _attempts(attempts, job.id)]
    if attempt and attempt.failure and job.state != JobState.SUCCEEDED:
        parts += _failure(attempt, job.next_action)
    return Group(*parts, *_next(job, name))


def _section(head: str, values: Mapping[str, FactValue]) -> list[RenderableType]:
    """Return the first values of a configuration or a summary, and the number of further values."""
    if not values:
        return []
    shown = list(values.items())[:MAX_FACTS]
    rows = facts([(formats.fact(name), formats.fact(value)) for name, value in shown])
    more = len(values) - len(shown)
    left = [Text(f"  and {more:,} more: --json has all", style="dim")] if more else []
    return [heading(head), rows, *left]


def _import(job: JobView) -> str | None:
    """Return `run 9dcz13mm of wandb, 12 points` for an imported job; None for any other job."""
    if job.imported is None:
        return None
    run = job.imported.run
    return f"run {run.run_id} of {run.tool}, {formats.counted(run.points, 'point')}"


def _runs_as(job: JobView) -> str | None:
    if job.imported is not None:
        return None
    slots = formats.counted(job.world_size, "slot")
    # The layout of a program is its number of slots.
    return f"{slots if job.layout == slots else f'{job.layout} on {slots}'}{_range(job)}"


def _range(job: JobView) -> str:
    """Return ` of 4 to 6` for an elastic job; empty for any other job."""
    if job.min_world_size is None:
        return ""
    return f" of {job.min_world_size:,} to {job.max_world_size:,}"


def _size_change(job: JobView) -> str | None:
    """Return the last size change, as `shrunk to 4 slots 2m ago: c has been silent for 12 s`."""
    change = job.size_change
    if change is None:
        return None
    verb = "shrunk" if change.world_size < change.before else "grew"
    slots = formats.counted(change.world_size, "slot")
    return f"{verb} to {slots} {formats.age(change.at)} ago: {change.reason}"


def _failed_save(attempt: AttemptView | None) -> Text | None:
    failed = attempt.save_failed if attempt else None
    if failed is None:
        return None
    text = f"fail since step {failed.saved_step:,}, next try {formats.date(failed.next_try_at)}, "
    return Text(f"{text}last one {formats.date(failed.give_up_at)}: {failed.message}", style="red")


def _stragglers(attempt: AttemptView | None) -> Text | None:
    if attempt is None or not attempt.stragglers:
        return None
    shown = attempt.stragglers[:MAX_STRAGGLERS]
    return Text("; ".join(one.words for one in shown), style="red")


def _ancestor(job: JobView) -> str | None:
    if job.forked_from is None or job.fork_parts is None:
        return None
    return f"{job.forked_from} ({', '.join(job.fork_parts)})"


def _why(job: JobView) -> str:
    """Return the reason for the job's state; empty if the shown failure contains the reason."""
    failed = job.current_attempt is not None and job.current_attempt.failure is not None
    return "" if failed and job.state == JobState.FAILED else job.reason or ""


def _attempts(attempts: Sequence[AttemptView], job_id: str) -> Listing:
    rows = Listing("  #", "WHY", "LAYOUT", "STEPS", "ENDED", "FROM", "CHECKED", "NODES",
                   right=("  #",), spare=("NODES", "WHY"))  # fmt: skip
    for attempt in sorted(attempts, key=lambda a: a.number):
        rows.add(
            f"{attempt.number}",
            attempt.cause,
            attempt.layout_name,
            f"{attempt.start_step:,} → {attempt.last_step:,}"
            if attempt.last_step or attempt.micro_batch_size is not None
            else formats.DASH,  # a program that reported no step
            attempt.outcome or attempt.state,
            _parent(attempt, job_id),
            _checked(attempt),
            ", ".join(map(_share, attempt.nodes)),
            style="" if attempt.on_lineage else "dim",
        )
    return rows


def _share(share: AttemptNodeView) -> str:
    spare = ", spare" if share.state == AttemptNodeState.SPARE else ""
    return f"{share.node} ({len(share.slots)}{spare})"


def _parent(attempt: AttemptView, job_id: str) -> str:
    parent = attempt.parent_checkpoint_id
    owner, _, place = (parent or "").partition(".")
    shown = formats.DASH if not parent else place if owner == job_id else f"fork of {place}"
    return shown if attempt.on_lineage else f"{shown} (abandoned)"


def _checked(attempt: AttemptView) -> Text:
    checked = attempt.continuity
    if checked is None:
        return Text(formats.DASH)
    if checked.ok:
        exact = "exact " if checked.exact else ""
        changed = formats.counted(len(checked.differs), "change") if checked.differs else ""
        return Text(f"✓ {exact}at step {checked.step:,}{changed and ', ' + changed}", style="green")
    broken = ", ".join(c.name for c in checked.checks if not c.ok)
    return Text(f"✗ {broken}", style="red")


def _failure(attempt: AttemptView, action: NextAction | None) -> list[RenderableType]:
    failure = attempt.failure
    assert failure is not None
    where = [
        f"rank {failure.rank}" if failure.rank is not None else "",
        f"node {failure.node}" if failure.node else "",
        f"step {failure.step:,}" if failure.step is not None else "",
        failure.signal or (f"exit code {failure.exit_code}" if failure.exit_code else ""),
    ]
    last_line = (failure.traceback or "").strip().rpartition("\n")[2]
    rows = facts(
        [
            ("reason", Text(failure.reason, style="red")),
            ("what", failure.message),
            ("where", ", ".join(part for part in where if part)),
            ("path", failure.path),
            ("raised", last_line if failure.message not in last_line else None),
            ("remedy", action.text if action else failure.remedy.text),
        ]
    )
    head = "Failure" if attempt.outcome == AttemptOutcome.FAILED else "First failure"
    return [heading(f"{head} of attempt {attempt.number}"), rows]


def _helping(job: JobView, name: str) -> list[tuple[str, str]]:
    """Return the command of the suggested action, if any; empty for a resume without a change."""
    action = job.next_action
    if action is None or (action.verb == "resume" and action.setting is None):
        return []
    setting = f" --set {action.setting}" if action.setting else ""
    if action.verb == "resume":
        return [(f"resume {name}{setting}", "resume, changed")]
    if action.verb == "fork":
        place = (action.checkpoint_id or "").partition(".")[2]
        return [(f"fork {name}@{place}{setting}", f"from step {action.step:,}, changed")]
    return [(f"submit FILE{setting}", "a new job, changed")]


def _next(job: JobView, name: str) -> list[RenderableType]:
    program = job.effective_spec.program
    if job.state == JobState.SUCCEEDED:
        other = (" --steps N", "with more steps")
    elif program is not None and program.resume == "same_world_size":
        other = ("", "on the same number of slots")
    elif program is not None and program.resume == "never":
        other = (" --world-size N", "from the start, on any number of slots")
    elif program is not None and program.layouts:
        sizes = ", ".join(map(str, program.world_sizes))
        other = (" --world-size N", f"on {sizes} slots")
    else:
        other = (" --world-size N", "on any number of slots")
    commands = {
        "stop": (f"stop {name}", "save, then end"),
        "cancel": (f"cancel {name}", "end now, without saving"),
        "resume": (f"resume {name}{other[0]}", f"resume, {other[1]}"),
        "resize": (f"resume {name} --world-size N", "save, then resume on other slots"),
        "delete": (f"delete {name}", "delete the job"),
    }
    verbs = [*_helping(job, name), *(commands[verb] for verb in job.verbs if verb in commands)]
    rows = [(f"trainyard {command}", hint) for command, hint in verbs]
    return [heading("Next"), facts(rows)] if rows else []
