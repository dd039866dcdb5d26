"""Builds the requests of an import: first the run without points, then points in batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from trainyard.base.json_text import MAX_VALUES
from trainyard.client.past_runs.past_run import (
    PastRun,
    arguments_of,
    clean_text,
    digest_of,
    job_name,
    last_value,
    legal_names,
    renamed,
    times_of,
    words_of,
    written,
)
from trainyard.protocol.past_runs.views import (
    MAX_BATCH_POINTS,
    ImportedPoints,
    ImportedRun,
    ImportedSeries,
    ImportRequest,
)
from trainyard.run.fact_types.fact_section import legal_tags
from trainyard.run.figures import LOSSES
from trainyard.spec.job import DEFAULT_PROJECT

PART_BYTES = 250_000
"""Maximum size in bytes of each of these: arguments, summary, original names, batch of points. The
server accepts a body of 1 MiB."""
MAX_ENTRIES, MAX_ARGUMENT_VALUES = 2000, 4000
"""Maximum numbers: of entries in the summary or in the original names; of argument values,
including list items. The server accepts `MAX_VALUES` values in a body."""
COMMAND_BYTES = 100_000
POINT_BYTES, SERIES_BYTES = 72, 32
"""Maximum size in bytes of a point, and of a series without its name."""
POINT_VALUES, SERIES_VALUES, BODY_VALUES = 4, 3, 2
"""Number of keys and list items in a point, in a series without its points, and in the rest of a
body."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class ImportOptions:
    """Settings that the user gave for the imported jobs."""

    name: str | None = None
    """Name of the jobs; by default the name of each run."""
    project: str = DEFAULT_PROJECT
    tags: tuple[str, ...] = ()


def request_of(run: PastRun, names: dict[str, str], options: ImportOptions) -> ImportRequest:
    """Return the request that starts an import; entries that do not fit are left out and noted.

    Args:
        run: the run, with each series in order.
        names: legal metric name for each series.
        options: the user's settings.
    """
    start, seconds = times_of(run)
    summary_names = legal_names(run.summary)
    summary = {summary_names[name]: written(value) for name, value in run.summary.items()}
    loss = next((name for name in LOSSES if name in run.series), "")
    return ImportRequest(
        run=ImportedRun(
            tool=run.tool,
            run_id=clean_text(run.run_id)[:200] or "run",
            digest=digest_of(run),
            summary=_fitting(run, "values of the summary", summary, most=MAX_ENTRIES),
            renamed=_fitting(run, "original names of series", renamed(names), most=MAX_ENTRIES),
            points=run.points,
        ),
        name=job_name(options.name or run.name),
        description=clean_text(run.description)[:4000],
        tags=legal_tags((*options.tags, *run.tags)),
        project=options.project,
        command=_fitting_words(run, words_of(run.command)),
        arguments=_fitting(
            run, "values of the configuration", arguments_of(run), most=MAX_ARGUMENT_VALUES
        ),
        state=run.state,
        reason=clean_text(run.reason)[:500],
        start_time=start,
        seconds=seconds,
        last_step=max((columns.steps[-1] for columns in run.series.values() if columns), default=0),
        loss=last_value(run.series[loss]) if loss else None,
    )


def _fitting(
    run: PastRun, what: str, entries: Mapping[str, Value], *, most: int
) -> dict[str, Value]:
    """Return the first entries, limited to `most` values and `PART_BYTES`; note an omission."""
    found: dict[str, Value] = {}
    size = count = 0
    for name, value in entries.items():
        size += json_bytes(name) + json_bytes(value) + 2
        count += 1 + (len(value) if isinstance(value, tuple) else 0)
        if size > PART_BYTES or count > most:
            run.note(f"{what} after the first {len(found):,} are left out")
            break
        found[name] = value
    return found


def _fitting_words(run: PastRun, words: tuple[str, ...]) -> tuple[str, ...]:
    sizes = accumulate(json_bytes(word) + 1 for word in words)
    fitting = sum(size <= COMMAND_BYTES for size in sizes)
    if fitting < len(words):
        run.note(f"words of the command after the first {fitting} are left out")
    return words[:fitting]


def json_bytes(value: object) -> int:
    """Return the size of a value in JSON, in bytes."""
    return len(json.dumps(value, ensure_ascii=False).encode())


@dataclass
class _Batch:
    """Points of one request, and the remaining limits of the request."""

    start: int
    series: list[ImportedSeries] = field(default_factory=list)
    points: int = 0
    values: int = MAX_VALUES - BODY_VALUES
    """Number of keys and list items that still fit."""
    bytes: int = PART_BYTES

    def room(self, name: str) -> int:
        """Return the number of points of another series that still fit."""
        return min(
            MAX_BATCH_POINTS - self.points,
            (self.values - SERIES_VALUES) // POINT_VALUES,
            (self.bytes - json_bytes(name) - SERIES_BYTES) // POINT_BYTES,
        )

    def add(self, series: ImportedSeries) -> None:
        """Add points of a series; the caller checks that they fit."""
        self.series.append(series)
        self.points += len(series.points)
        self.values -= SERIES_VALUES + POINT_VALUES * len(series.points)
        self.bytes -= json_bytes(series.name) + SERIES_BYTES + POINT_BYTES * len(series.points)

    def body(self) -> ImportedPoints:
        """Return the body of the request."""
        return ImportedPoints(start=self.start, series=tuple(self.series))


def batches(run: PastRun, names: dict[str, str], *, start: int) -> Iterator[ImportedPoints]:
    """Yield batches of all points from point number `start` on, series by series."""
    batch, place = _Batch(start), 0
    for name in sorted(run.series):
        columns, legal = run.series[name], names[name]
        at = min(max(start - place, 0), len(columns))
        place += len(columns)
        while at < len(columns):
            room = batch.room(legal)
            if room < 1:
                yield batch.body()
                batch = _Batch(batch.start + batch.points)
                continue
            end = min(at + room, len(columns))
            rows = zip(
                columns.steps[at:end],
                columns.times[at:end],
                map(written, columns.values[at:end]),
                strict=True,
            )
            batch.add(ImportedSeries(name=legal, points=list(rows)))
            at = end
    if batch.points:
        yield batch.body()
