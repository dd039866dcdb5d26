"""Tables of jobs, artifacts, events, nodes, metrics, and world sizes to resume on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from trainyard.base.labels import in_words
from trainyard.cli import formats
from trainyard.cli.output import state_text
from trainyard.cli.table import Listing
from trainyard.protocol.job_artifacts.views import ArtifactView
from trainyard.protocol.rest.events import AnyEvent
from trainyard.protocol.rest.jobs import JobSummary, Progress, QueueEntry, WhatIf
from trainyard.protocol.rest.metrics_and_logs import CurveView, MetricsView
from trainyard.protocol.rest.nodes import NodeView
from trainyard.protocol.rest.resume import ResumeOptions
from trainyard.protocol.states import JobState

WHY_COLUMNS = 70
SHORT_ID = 12
"""Number of characters of an id in tables; enough to distinguish simultaneous jobs."""


def draw_jobs(jobs: Sequence[JobSummary], *, filtered: bool = False) -> RenderableType:
    """Return the table that `ps` shows."""
    if not jobs and filtered:
        return Text("No job matches; `trainyard ps` without options lists jobs.")
    if not jobs:
        return Text("No jobs. `trainyard init` writes a spec, `trainyard submit FILE` submits it.")
    rows = Listing(
        "ID", "NAME", "STATE", "STEP", "LOSS", "TOK/S", "LEFT", "LAYOUT", "TRY", "AGE", "WHY",
        right=("STEP", "LOSS", "TOK/S", "LEFT", "TRY", "AGE"),
        spare=("TRY", "TOK/S", "LAYOUT", "AGE", "LEFT", "LOSS"),
        elastic="WHY",
    )  # fmt: skip
    for job in jobs:
        at = job.progress
        rows.add(
            job.id[:SHORT_ID],
            job.name,
            state_text(job.state),
            _steps(at, job.state),
            formats.number(at.loss),
            formats.short(at.tokens_per_second) if job.state == "running" else formats.DASH,
            formats.duration(at.seconds_left) if job.state == "running" else formats.DASH,
            job.layout,
            str(job.attempt or formats.DASH),
            formats.age(job.created_at),
            Text(formats.clipped(job.reason or "", WHY_COLUMNS), style="dim"),
        )
    return rows


def _steps(at: Progress, state: JobState) -> str:
    if not formats.has_step(at, state):
        return formats.DASH
    return f"{at.step:,}" if at.steps is None else f"{at.step:,}/{at.steps:,}"


def draw_artifacts(artifacts: Sequence[ArtifactView]) -> RenderableType:
    """Return the table that `artifacts` shows."""
    if not artifacts:
        return Text("No images, histograms or files. A script logs them with trainyard.init().")
    rows = Listing(
        "NAME", "KIND", "STEP", "SIZE", "TRY", "LOGGED", "CAPTION",
        right=("STEP", "SIZE", "TRY", "LOGGED"),
        spare=("CAPTION", "TRY", "LOGGED"),
        elastic="CAPTION",
    )  # fmt: skip
    for each in artifacts:
        rows.add(
            each.name,
            each.kind,
            formats.DASH if each.step is None else f"{each.step:,}",
            formats.size(each.size),
            str(each.attempt),
            formats.age(datetime.fromtimestamp(each.time, UTC)),
            Text(formats.clipped(each.caption, WHY_COLUMNS), style="dim"),
        )
    return rows


def draw_counts(counts: Mapping[JobState, int], *, shown: int) -> RenderableType:
    """Return the line below the table of `ps`: matching jobs by state, and the number not shown."""
    parts = [state_text(state).append(f" {counts[state]:,}") for state in JobState if counts[state]]
    rest = sum(counts.values()) - shown
    if rest > 0:
        parts.append(Text(f"{rest:,} not shown: --limit", style="dim"))
    return Text("\n") + Text("   ").join(parts)


def draw_queue(entries: Sequence[QueueEntry]) -> RenderableType:
    """Return the table that `queue` shows."""
    if not entries:
        return Text("No job waits.")
    rows = Listing(
        "POS", "ID", "NAME", "PRIORITY", "SLOTS", "LAYOUT", "WAITS", "START", "WHY",
        right=("POS", "SLOTS", "WAITS"),
        spare=("LAYOUT", "ID", "PRIORITY", "WAITS"),
        elastic="WHY",
    )  # fmt: skip
    for entry in entries:
        start, ahead = entry.expected_start_at, entry.backfilled_before
        backfilled = f"will be backfilled before {ahead}" if ahead is not None else None
        why = "; ".join(filter(None, (entry.reason, entry.unknown_because, backfilled)))
        rows.add(
            f"{entry.position:,}",
            (entry.job_id or formats.DASH)[:SHORT_ID],
            entry.name,
            entry.priority_words or formats.DASH,
            f"{entry.world_size:,}",
            entry.layout,
            formats.age(entry.queued_at),
            formats.DASH if start is None else formats.date(start),
            Text(why, style="dim"),
        )
    return rows


def draw_what_if(answer: WhatIf) -> RenderableType:
    """Return the expected start of a job with a given spec, as if the job were submitted now."""
    if answer.starts_now:
        return Text("It would start immediately.")
    start = answer.expected_start_at
    when = "at an unknown time" if start is None else f"about {formats.date(start)}"
    why = "; ".join(filter(None, (answer.reason, answer.unknown_because)))
    return Text(f"It would wait at position {answer.position:,} and start {when}: {why}")


def draw_events(events: Sequence[AnyEvent]) -> RenderableType:
    """Return a table of events, the oldest first, with the columns of the command `events`."""
    if not events:
        return Text("No events.")
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("TIME", "TRY", "WHO"):
        rows.add_column(name, no_wrap=True)
    rows.add_column("WHAT", overflow="fold")  # messages wrap and are never cut
    for event in sorted(events, key=lambda e: e.id):
        attempt = str(event.attempt) if event.attempt is not None else formats.DASH
        rows.add_row(formats.date(event.at), attempt, event.actor, Text(event.message))
    return rows


def draw_nodes(nodes: Sequence[NodeView]) -> RenderableType:
    """Return the table that `nodes` shows."""
    if not nodes:
        return Text("No nodes. A worker joins with a join token; `trainyard up` starts one here.")
    rows = Listing("NAME", "STATE", "FREE", "SLOTS", "DEVICE", "MEMORY", "ISOLATION", "SEEN",
                   "LABELS", "JOBS", right=("FREE", "SLOTS", "SEEN"), elastic="JOBS",
                   spare=("SEEN", "ISOLATION", "MEMORY", "LABELS", "DEVICE"))  # fmt: skip
    for node in nodes:
        state = "draining" if node.draining else "online"
        if node.drain is not None and node.drain.running == "finish" and node.notice is None:
            state = "cordoned"
        hardware = node.hardware
        rows.add(
            node.name,
            state if node.online else "offline",
            str(node.free_slots),
            str(hardware.slots),
            hardware.device_name,
            f"{formats.size(hardware.device_memory_bytes)} a slot",
            hardware.isolation,
            formats.age(node.heartbeat_at),
            in_words(node.labels),
            ", ".join(f"{a.job_name} ({len(a.allocation.slots)})" for a in node.allocations),
        )
    return rows


def draw_metrics(view: MetricsView) -> RenderableType:
    """Return a row per series, with its last value and its range."""
    if not view.curves:
        return Text("No metrics yet.")
    rows = Listing("METRIC", "BRANCH", "STEPS", "LAST", "MIN", "MAX", "NOT FINITE", "POINTS",
                   right=("STEPS", "LAST", "MIN", "MAX", "NOT FINITE", "POINTS"),
                   spare=("POINTS", "STEPS", "BRANCH", "NOT FINITE"))  # fmt: skip
    for curve in view.curves:
        rows.add(curve.name, curve.branch, *series_cells(curve), f"{sum(curve.count):,}")
    return rows


def series_cells(curve: CurveView | None) -> tuple[str, ...]:
    """Return steps, last, minimum and maximum value, and the count of NaN and infinite points."""
    if curve is None or not curve.steps:
        return (formats.DASH,) * 5
    last = (value for value in reversed(curve.last) if value is not None)
    return (
        f"{curve.first_steps[0]:,} → {curve.steps[-1]:,}",
        formats.number(next(last, None)),
        formats.number(min((v for v in curve.min if v is not None), default=None)),
        formats.number(max((v for v in curve.max if v is not None), default=None)),
        f"{sum(curve.non_finite):,}",
    )


def draw_options(options: ResumeOptions) -> RenderableType:
    """Return the table of world sizes that a resume may use."""
    rows = Listing("SLOTS", "FREE", "LAYOUTS", "MICRO-BATCH", "IDLE", "MEMORY",
                   right=("SLOTS",), spare=("FREE",), elastic="LAYOUTS")  # fmt: skip
    for option in options.options:
        free = "yes" if option.free_now else "no"
        if not option.layouts:
            reason = Text(option.reason or "", style="dim")
            rows.add(str(option.world_size), free, reason, "", "", "")
            continue
        first = option.layouts[0]
        rows.add(
            str(option.world_size),
            free,
            ", ".join(layout.name for layout in option.layouts)
            + (f" and {option.more:,} more" if option.more else ""),
            *(
                ("", "")
                if first.batch is None
                else (str(first.batch.micro_batch_size), formats.share(first.batch.idle_share))
            ),
            "" if first.memory is None else formats.size(first.memory.total),
        )
    return rows
