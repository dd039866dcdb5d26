"""`goodput`: time by category, of a job or of all slots; `advise`: what slows a job."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from trainyard.cli.formats import DASH, counted, duration, share
from trainyard.cli.options import JobReference, Json
from trainyard.cli.output import emit
from trainyard.cli.table import Listing
from trainyard.client.errors import UsageError
from trainyard.client.references import resolve_job
from trainyard.client.sdk import Client
from trainyard.protocol.goodput import (
    AdviceFinding,
    AdviceView,
    ClusterGoodputView,
    Evidence,
    GoodputView,
    IntervalOutcome,
    MeanTimeToFailure,
    SaveIntervalWhatIf,
)

BAR = 30
"""Number of characters in the bar of a category that takes the whole time."""
DAY = ["%Y-%m-%d"]


def goodput(
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB", help="Job id, prefix of an id, name, or @last. Default: all slots."
        ),
    ] = None,
    interval_steps: Annotated[
        int | None,
        typer.Option(
            "--save-every",
            metavar="STEPS",
            min=0,
            help="Replay JOB with a save every STEPS steps; 0 for no saves.",
        ),
    ] = None,
    first: Annotated[
        datetime | None,
        typer.Option(
            "--from",
            formats=DAY,
            metavar="DAY",
            help="All slots: first day (UTC). Default: 29 days before the last.",
        ),
    ] = None,
    last: Annotated[
        datetime | None,
        typer.Option(
            "--to", formats=DAY, metavar="DAY", help="All slots: last day (UTC). Default: today."
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="All slots: only those held by its jobs.")
    ] = None,
    json: Json = False,
) -> None:
    """Show the time of a job by category or, without JOB, the time of all slots.

    The categories sum to the exact total; docs/goodput.md explains each category.
    """
    if reference is None and interval_steps is not None:
        raise UsageError("--save-every needs a JOB")
    if reference is not None and (first or last or project):
        raise UsageError("--from, --to and --project apply to all slots: leave JOB out")
    with Client() as yard:
        if reference is None:
            cluster = yard.cluster_goodput(
                first=first and first.date(), last=last and last.date(), project=project
            )
            emit(cluster, draw_cluster, as_json=json)
            return
        job_id = resolve_job(yard, reference)
        if interval_steps is not None:
            emit(yard.save_interval_what_if(job_id, interval_steps), draw_what_if, as_json=json)
            return
        emit(yard.goodput(job_id), draw, as_json=json)


def draw(view: GoodputView) -> RenderableType:
    """Return a table of a job's time by category, and the goodput ratios."""
    times = [(each.words, each.milliseconds) for each in view.categories]
    rows = _bars("CATEGORY", "TIME", times)
    rows.add("wall time", duration(view.wall_milliseconds / 1000), "", "")
    return Group(rows, Text(""), Text(_ratios(view)))


def draw_cluster(view: ClusterGoodputView) -> RenderableType:
    """Return a table of slot-time by category, and a table of the jobs that lost most slot-time."""
    rows = _bars(
        "SLOTS WERE",
        "SLOT TIME",
        [(each.words, each.slot_milliseconds) for each in view.categories],
    )
    rows.add("all slots", duration(view.slot_milliseconds / 1000), "", "")
    parts: list[RenderableType] = [rows, Text(""), Text(_cluster_ratios(view))]
    if view.losing_jobs:
        losing = Listing("MOST LOST", "SLOT TIME", "FAILURES", "REASON", right=("SLOT TIME",))
        for job in view.losing_jobs:
            lost = duration(job.lost_slot_milliseconds / 1000)
            losing.add(job.name, lost, str(job.failures), str(job.reason or DASH))
        parts += [Text(""), losing]
    return Group(*parts)


def draw_what_if(answer: SaveIntervalWhatIf) -> RenderableType:
    """Return a table that compares the recorded, the requested and the best save interval."""
    if answer.replayed is None or answer.best is None:
        return Text("No step times are recorded: there is nothing to replay.")
    numbers = ("GOODPUT", "WALL TIME", "STEPS LOST", "TIME LOST", "STALLS")
    rows = Listing("SAVES", *numbers, right=numbers, elastic="SAVES")

    def add(words: str, outcome: IntervalOutcome) -> None:
        rows.add(
            words,
            share(outcome.goodput),
            duration(outcome.wall_milliseconds / 1000),
            f"{outcome.lost_steps:,}",
            duration(outcome.lost_milliseconds / 1000),
            duration(outcome.save_stall_milliseconds / 1000),
        )

    add("as recorded", answer.recorded)
    add(_every(answer.interval_steps), answer.replayed)
    add(f"best: {_every(answer.best_interval_steps or 0)}", answer.best)
    daly = answer.daly_interval_steps
    note = f"A save holds up training for {answer.stall_seconds:.2f} s."
    if daly is not None:
        note += f" Daly's estimate: {_every(daly)}."
    candidates = (
        (answer.interval_steps, answer.replayed),
        (answer.best_interval_steps or 0, answer.best),
    )
    expected = [
        f"{share(outcome.expected_ettr)} with saves {_every(steps)}"
        for steps, outcome in candidates
        if outcome.expected_ettr is not None
    ]
    if expected:
        note += f" Expected ETTR of a long run: {', '.join(expected)}."
    return Group(rows, Text(""), Text(note))


def _bars(name: str, amount: str, times: Iterable[tuple[str, int]]) -> Listing:
    listed = sorted(times, key=lambda each: -each[1])
    whole = sum(time for _, time in listed)
    rows = Listing(name, amount, "SHARE", "", right=(amount, "SHARE"), spare=("",), elastic=name)
    for words, time in listed:
        if time:
            part = time / whole
            rows.add(words, duration(time / 1000), share(part), "█" * max(1, round(part * BAR)))
    return rows


def _every(steps: int) -> str:
    return f"every {counted(steps, 'step')}" if steps else "none"


def _ratios(view: GoodputView) -> str:
    if view.goodput is None and view.wall_milliseconds:
        return (
            "Goodput and ETTR are unknown: no step times are recorded. A program logs them as "
            f"perf/step_seconds. {_failed(view).capitalize()}."
        )
    return f"Goodput {share(view.goodput)}, ETTR {share(view.ettr)}, {_failed(view)}."


def _cluster_ratios(view: ClusterGoodputView) -> str:
    words = f"Goodput {share(view.goodput)}, {_failed(view)}"
    if view.failures and view.failures_per_1000_node_days is not None:
        words += f", {view.failures_per_1000_node_days:,.2f} in 1,000 node-days"
    return f"{words}."


def _failed(view: MeanTimeToFailure) -> str:
    words = counted(view.failures, "failure")
    if view.mttf_seconds is None:
        return words
    bounds = f"{duration(view.mttf_lower_seconds)} to {duration(view.mttf_upper_seconds)}"
    return f"{words}, mean time to failure {duration(view.mttf_seconds)} (90 %: {bounds})"


def advise(reference: JobReference, json: Json = False) -> None:
    """Show what slows a job, with evidence from its records, and a remedy with its maximum gain.

    docs/advice.md explains the rules.
    """
    with Client() as yard:
        emit(yard.advice(resolve_job(yard, reference)), draw_advice, as_json=json)


def draw_advice(view: AdviceView) -> RenderableType:
    """Return a paragraph per finding, the costliest first."""
    if view.attempt is None:
        read = "No step times are recorded: only the time on slots was read."
    else:
        read = f"Read: the last {counted(view.recent_steps, 'step')} of attempt {view.attempt}."
    if not view.findings:
        return Group(Text("Nothing takes a noticeable part of the time."), Text(read, "dim"))
    parts: list[RenderableType] = []
    for number, finding in enumerate(view.findings, start=1):
        parts += [*_paragraph(number, finding), Text("")]
    return Group(*parts, Text(read, "dim"))


def _paragraph(number: int, finding: AdviceFinding) -> list[Text]:
    gain = "" if finding.gain is None else f" At most {share(finding.gain)} faster."
    evidence = ", ".join(map(_figure, finding.evidence))
    return [
        Text(f"{number}. {finding.words}", "bold"),
        Text(f"   {finding.remedy}{gain}"),
        Text(f"   {evidence}", "dim"),
    ]


def _figure(evidence: Evidence) -> str:
    unit = f" {evidence.unit}" if evidence.unit else ""
    return f"{evidence.name} {evidence.value:.3g}{unit}"
