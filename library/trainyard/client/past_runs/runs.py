"""From a path of another tool to jobs: finds its runs, and sends each with its points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.client.calls.past_runs import ImportCalls
from trainyard.client.errors import UsageError
from trainyard.client.past_runs.event_folders import event_folders, read_folder
from trainyard.client.past_runs.mlflow_store import read_database, read_folders
from trainyard.client.past_runs.past_run import (
    LOSSES,
    PastRun,
    arguments_of,
    clean_text,
    digest_of,
    job_name,
    last_value,
    legal_names,
    legal_tags,
    ordered,
    renamed,
    times_of,
    words_of,
    written,
)
from trainyard.client.past_runs.wandb_files import read_wandb
from trainyard.protocol.past_runs.views import (
    MAX_BATCH_POINTS,
    ImportedPoints,
    ImportedRun,
    ImportedSeries,
    ImportRequest,
    ImportTool,
    ImportView,
)
from trainyard.spec.job import DEFAULT_PROJECT

MOST_FILES = 10_000
"""Files below a path that are looked at."""


@dataclass(frozen=True)
class ImportOptions:
    """What the user sets of the jobs."""

    name: str | None = None
    """Name in place of that of the run."""
    project: str = DEFAULT_PROJECT
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImportResult:
    """What became of one run."""

    run: PastRun
    view: ImportView
    sent: int
    """Points that were sent now; none where the server had all of them."""


def find_runs(tool: ImportTool, path: Path) -> Iterator[PastRun]:
    """Yield the runs of a tool at a path, one after the other.

    Raises:
        UsageError: there is none, or a file cannot be read.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    number = 0
    finders = {"wandb": _of_wandb, "mlflow": _of_mlflow, "tensorboard": _of_tensorboard}
    try:
        for run in finders[tool](path):
            number += 1
            yield run
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be imported: {error}") from None
    if not number:
        raise UsageError(f"{path} holds no run of {tool}", remedy=EXPECTED[tool])


EXPECTED: dict[ImportTool, str] = {
    "wandb": "Name a file run-*.wandb, a folder of a run, or the folder `wandb` above them.",
    "mlflow": "Name the SQLite file of the store, or the folder `mlruns`, or one above them.",
    "tensorboard": "Name a folder with event files (*tfevents*), or one above such folders.",
}
"""What a path of each tool looks like."""


def import_run(yard: ImportCalls, run: PastRun, options: ImportOptions) -> ImportResult:
    """Send a run and those points that the server does not have; a repeat continues it.

    Raises:
        ApiError: the server refuses it.
    """
    ordered(run)
    names = legal_names(run.series)
    request = _request(run, names, options)
    view = yard.start_import(request)
    before = view.received
    for batch in _batches(run, names, start=before):
        view = yard.add_points(view.job_id, batch)
    return ImportResult(run, view, view.received - before)


def _request(run: PastRun, names: dict[str, str], options: ImportOptions) -> ImportRequest:
    start, seconds = times_of(run)
    summary_names = legal_names(run.summary)
    summary = {summary_names[name]: written(value) for name, value in run.summary.items()}
    loss = next((name for name in LOSSES if name in run.series), "")
    return ImportRequest(
        run=ImportedRun(
            tool=run.tool,
            run_id=clean_text(run.run_id)[:200] or "run",
            digest=digest_of(run),
            summary=dict(list(summary.items())[:2000]),
            renamed=renamed(names),
            points=run.points,
        ),
        name=job_name(options.name or run.name),
        description=clean_text(run.description)[:4000],
        tags=legal_tags((*options.tags, *run.tags)),
        project=options.project,
        command=words_of(run.command),
        arguments=arguments_of(run),
        state=run.state,
        reason=clean_text(run.reason)[:500],
        start_time=start,
        seconds=seconds,
        last_step=max((columns.steps[-1] for columns in run.series.values() if columns), default=0),
        loss=last_value(run.series[loss]) if loss else None,
    )


def _batches(run: PastRun, names: dict[str, str], *, start: int) -> Iterator[ImportedPoints]:
    """Yield all points from the one with number `start` on, series by series."""
    place, series, size = 0, list[ImportedSeries](), 0
    for name in sorted(run.series):
        columns = run.series[name]
        at = min(max(start - place, 0), len(columns))
        place += len(columns)
        while at < len(columns):
            end = min(at + MAX_BATCH_POINTS - size, len(columns))
            rows = zip(
                columns.steps[at:end],
                columns.times[at:end],
                map(written, columns.values[at:end]),
                strict=True,
            )
            series.append(ImportedSeries(name=names[name], points=list(rows)))
            size += end - at
            at = end
            if size == MAX_BATCH_POINTS:
                yield ImportedPoints(start=start, series=tuple(series))
                start, series, size = start + size, [], 0
    if series:
        yield ImportedPoints(start=start, series=tuple(series))


def _of_wandb(path: Path) -> Iterator[PastRun]:
    files = [path] if path.is_file() else sorted(path.rglob("run-*.wandb"))[:MOST_FILES]
    for file in files:
        if file.is_file() and (file == path or not file.is_symlink()):
            yield read_wandb(file)


def _of_mlflow(path: Path) -> Iterator[PastRun]:
    if path.is_file():
        yield from read_database(path)
        return
    yield from read_folders(path)
    yield from read_folders(path / "mlruns")
    for store in sorted(path.glob("*.db"))[:MOST_FILES]:
        yield from read_database(store)


def _of_tensorboard(path: Path) -> Iterator[PastRun]:
    if path.is_file():
        yield read_folder(path.parent, [path], root=path.parent)
        return
    for folder, files in event_folders(path, most=MOST_FILES):
        yield read_folder(folder, files, root=path)
