"""`compare`: the same series of several jobs as a table, or the curves of the series as CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import typer
from rich.console import RenderableType
from rich.text import Text

from trainyard.cli.formats import counted, fact
from trainyard.cli.listings import series_cells
from trainyard.cli.options import Json
from trainyard.cli.output import emit, state_text, write_text
from trainyard.cli.table import Listing
from trainyard.client.references import resolve_job
from trainyard.client.sdk import Client
from trainyard.protocol.rest.metrics_and_logs import ComparisonView, FactsComparison
from trainyard.run.metric_names import quoted

USUAL = (
    "train/loss",
    "validation/loss",
    "train/grad_norm",
    "perf/tokens_per_second_per_device",
    "perf/mfu",
    "memory/peak_reserved_gib",
)
"""Series to compare by default."""
MAX_OTHERS = 6
"""Maximum number of series to compare if no job has a default series. The most common series are
chosen."""
LONGEST_SHOWN = 40
"""Maximum number of characters of a value in a column; `--facts --json` has the whole value."""
CSV_HEADER = "job,name,metric,step,tokens,seconds,last,min,max,count,non_finite"


def compare(
    references: Annotated[
        list[str],
        typer.Argument(metavar="JOB", help="Up to 8 jobs: ids, prefixes of ids, names, @last."),
    ],
    names: Annotated[
        str | None,
        typer.Option("--names", metavar="A,B", help="Only these series, such as train/loss."),
    ] = None,
    x: Annotated[
        Literal["step", "tokens", "seconds"],
        typer.Option(
            "--x", help="Unit of --from and --to. Seconds count from a job's first point."
        ),
    ] = "step",
    start: Annotated[
        float | None, typer.Option("--from", min=0, help="Start of the range, in units of --x.")
    ] = None,
    end: Annotated[
        float | None, typer.Option("--to", min=0, help="End of the range, in units of --x.")
    ] = None,
    points: Annotated[
        int, typer.Option("--max-points", min=1, help="Most buckets of a curve (--csv, --json).")
    ] = 1000,
    facts: Annotated[
        bool, typer.Option("--facts", help="Show only differing values of config and summary.")
    ] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Write curves in buckets: step, tokens and seconds.")
    ] = False,
    json: Json = False,
) -> None:
    """Compare jobs: last value and range of each series; config and summary values that differ."""
    with Client() as yard:
        job_ids = [resolve_job(yard, reference) for reference in references]
        if facts:
            emit(yard.compare_facts(job_ids), draw_facts, as_json=json)
            return
        chosen = [name for name in (names or "").split(",") if name]
        if not chosen:
            chosen = usual_names([job.names for job in yard.compare(job_ids).jobs])
        view = yard.compare(job_ids, names=chosen, x=x, from_x=start, to_x=end, max_points=points)
        as_text = not (csv or json)
        differing = yard.compare_facts(job_ids) if as_text and len(set(job_ids)) > 1 else None
    if csv and not json:
        for line in csv_lines(view):
            print(line)
    else:
        emit(view, draw, as_json=json)
    if differing is not None and (differing.config or differing.summary):
        write_text("", draw_facts(differing))


def usual_names(names: Iterable[Sequence[str]]) -> list[str]:
    """Return the series to compare by default, from the series names of each job."""
    jobs = Counter(name for each in names for name in each)
    usual = [name for name in USUAL if name in jobs]
    return usual or [name for name, _ in jobs.most_common(MAX_OTHERS)]


def csv_lines(view: ComparisonView) -> Iterator[str]:
    """Yield the header and one line per bucket; unknown values are empty."""
    yield CSV_HEADER
    for job in view.jobs:
        start = job.start_time or 0.0
        for curve in job.curves:
            columns = (curve.tokens, curve.times, curve.last, curve.min, curve.max)
            rows = zip(curve.steps, *columns, curve.count, curve.non_finite, strict=True)
            for step, tokens, time, *values, count, strange in rows:
                seconds = None if time is None else round(time - start, 6)
                cells = (step, tokens, seconds, *values, count, strange)
                texts = ("" if cell is None else str(cell) for cell in cells)
                yield ",".join((job.id, job.name, quoted(curve.name), *texts))


def draw_facts(view: FactsComparison) -> RenderableType:
    """Return a table with a row per differing value and a column per job."""
    if not view.config and not view.summary:
        return Text(f"No differences: {counted(view.same, 'value')} in common.")
    heads = [f"{place}: {job.name}" for place, job in enumerate(view.jobs, start=1)]
    rows = Listing("", "NAME", *heads, elastic="NAME", spare=heads[:1:-1])
    for section, found in (("config", view.config), ("summary", view.summary)):
        for row in found:
            values = (fact(value)[:LONGEST_SHOWN] for value in row.values)
            rows.add(section, fact(row.name), *values)
    return rows


def draw(view: ComparisonView) -> RenderableType:
    """Return a table with a row per series and job."""
    names = list(dict.fromkeys(curve.name for job in view.jobs for curve in job.curves))
    if not names:
        return Text("No metrics yet.")
    rows = Listing(
        "METRIC", "JOB", "STATE", "LAYOUT", "STEPS", "LAST", "MIN", "MAX", "NOT FINITE",
        right=("STEPS", "LAST", "MIN", "MAX", "NOT FINITE"),
        spare=("NOT FINITE", "STEPS", "STATE", "MAX", "MIN", "LAYOUT"),
        elastic="JOB",
    )  # fmt: skip
    for name in names:
        for job in view.jobs:
            curve = next((curve for curve in job.curves if curve.name == name), None)
            rows.add(
                name,
                job.name,
                state_text(job.state),
                job.layout,
                *series_cells(curve),
            )
    return rows
