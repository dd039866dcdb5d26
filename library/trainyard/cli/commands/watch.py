"""`watch`: follows a job, with a live panel on a terminal and with lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainyard.cli import formats
from trainyard.cli.options import JobReference, Json
from trainyard.cli.output import console, note, state_text, write_json_line
from trainyard.cli.render import progress_words
from trainyard.client.references import resolve_job
from trainyard.client.sdk import Client
from trainyard.client.stream import Resync
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.rest.event_data import MetricsStored
from trainyard.protocol.rest.events import AnyEvent, AnyStreamItem, Notice
from trainyard.protocol.rest.jobs import JobView
from trainyard.protocol.states import TERMINAL_JOB_STATES, JobState

INTERRUPTED = 130
BAR_COLUMNS = 60
PROGRESS_SECONDS = 2.0
"""Without a terminal, minimum time in seconds between two lines of progress."""


def watch(reference: JobReference = "@last", json: Json = False) -> None:
    """Follow a job until it ends. Exit code: 0 succeeded, 1 failed, 3 stopped or cancelled."""
    with Client() as yard:
        job = watch_job(yard, resolve_job(yard, reference), as_json=json)
    raise typer.Exit(end_code(job.state))


class Screen:
    """Shows a job and its events; this base class shows nothing."""

    def __enter__(self) -> None:
        """Open the screen."""

    def __exit__(self, *exception: object) -> None:
        """Close the screen."""

    def show(self, job: JobView) -> None:
        """Show the current state of the job."""

    def show_item(self, item: AnyStreamItem, job: JobView) -> None:
        """Show an event or a notice, and the state of the job after this item."""


def end_code(state: JobState) -> int:
    """Return the exit code for a job's final state."""
    return {JobState.SUCCEEDED: 0, JobState.FAILED: 1}.get(state, 3)


def watch_job(yard: Client, job_id: str, *, as_json: bool = False) -> JobView:
    """Show a job until it has ended, and return the job; Ctrl-C leaves the job running."""
    screen: Screen
    if as_json:
        screen = JsonPrinter()
    elif sys.stdout.isatty():
        screen = Panel()
    else:
        screen = Lines()
    try:
        with screen:
            job = follow(yard, job_id, screen)
    except KeyboardInterrupt:
        note(f"The job continues. `trainyard watch {job_id}` follows it again.")
        raise typer.Exit(INTERRUPTED) from None
    if job.state == JobState.FAILED and not as_json:
        note(f"Next: trainyard show {job_id} (the failure), trainyard logs {job_id}")
    return job


def follow(yard: Client, job_id: str, screen: Screen) -> JobView:
    """Update a screen from the stream until the job has ended; return the job."""
    for item in yard.stream(job_id=job_id):
        if isinstance(item, Resync):
            job = yard.job(job_id)
            screen.show(job)
            ended = job.state in TERMINAL_JOB_STATES
        else:
            if isinstance(item.data, MetricsStored):
                job = job.model_copy(update={"progress": item.data.progress})
            else:
                job = yard.job(job_id)
            screen.show_item(item, job)
            # The job may end before its last events arrive, so show these events too.
            ended = item.kind == EventKind.JOB_ENDED and job.state in TERMINAL_JOB_STATES
        if ended:
            return job
    raise AssertionError("the stream ends only by raising")


class JsonPrinter(Screen):
    """Writes every event and notice as one line of JSON."""

    def show_item(self, item: AnyStreamItem, job: JobView) -> None:  # noqa: ARG002 - a Screen
        """Write the event or notice as one line of JSON."""
        write_json_line(item)


class Lines(Screen):
    """Writes plain lines: events immediately, progress at most every two seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._next_progress = 0.0
        self._shown: str | None = None

    def show(self, job: JobView) -> None:
        """Write the job on one line, unless the line equals the last one about the job."""
        line = state_text(job.state).append(f"  {summary(job)}", style="default")
        if line.plain != self._shown:
            console().print(Text.assemble((f"{job.name}  ", "bold"), line))
        self._shown = line.plain
        self._next_progress = self._now() + PROGRESS_SECONDS

    def show_item(self, item: AnyStreamItem, job: JobView) -> None:
        """Write an event; for a notice, write the progress if `PROGRESS_SECONDS` have passed."""
        if not isinstance(item, Notice):
            console().print(event_line(item))
            if item.kind == EventKind.JOB_ENDED:
                self.show(job.model_copy(update={"reason": None}))  # the event contains the reason
        elif job.state not in TERMINAL_JOB_STATES and self._now() >= self._next_progress:
            self.show(job)


class Panel(Screen):
    """A live panel of the job, with the job's events above the panel."""

    def __init__(self) -> None:
        self._live = Live(console=console(), auto_refresh=False)

    def __enter__(self) -> None:
        """Take over the bottom of the terminal."""
        self._live.start()

    def __exit__(self, *exception: object) -> None:
        """Leave the last view on the terminal."""
        self._live.stop()

    def show(self, job: JobView) -> None:
        """Draw the job."""
        self._live.update(panel(job), refresh=True)

    def show_item(self, item: AnyStreamItem, job: JobView) -> None:
        """Write an event above the panel, then draw the job."""
        if not isinstance(item, Notice):
            self._live.console.print(event_line(item))
        self.show(job)


def event_line(event: AnyEvent) -> Text:
    """Return an event as text, with its time of day."""
    return Text.assemble((formats.clock(event.at), "dim"), f"  {event.message}")


def summary(job: JobView) -> str:
    """Return phase, progress, layout, attempt, and the reason for the job's state, if any."""
    parts = [progress_words(job.progress, job.state)]
    if (phase := phase_words(job)) is not None:
        parts.insert(0, phase)
    if job.attempt:
        parts.append(f"{job.layout}  attempt {job.attempt}")
    if job.reason:
        parts.append(job.reason)
    return "  ".join(parts)


def phase_words(job: JobView) -> str | None:
    """Return the trainer's phase as text; None if the job's state implies the phase."""
    phase = job.progress.phase
    implied = phase is None or phase in ("training", job.state) or job.state in TERMINAL_JOB_STATES
    return None if implied or phase is None else phase.replace("_", " ")


def panel(job: JobView) -> RenderableType:
    """Return the live view of a job."""
    at = job.progress
    head = Text.assemble((job.name, "bold"), "  ", state_text(job.state))
    if (phase := phase_words(job)) is not None:
        head.append(f"  {phase}", style="dim")
    place = f"{job.layout} on {formats.counted(job.world_size, 'slot')}"
    bar = Table.grid()  # a bar alone does not end its line
    bar.add_row(
        ProgressBar(
            total=at.steps,
            completed=at.step,
            width=BAR_COLUMNS,
            complete_style="cyan",
            finished_style="green",
        )
    )
    words_of_progress = progress_words(at, job.state)
    tail = f"{place}, attempt {job.attempt}" if job.attempt else place
    below = [Text(words_of_progress), Text(tail, style="dim"), Text(job.reason or "")]
    for line in (head, *below):
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(Text(), head, bar, *below)
