"""Imports the runs at a path: finds the runs, and sends each with its points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trainyard.client.calls.past_runs import ImportCalls
from trainyard.client.errors import (
    ApiError,
    ForbiddenError,
    InvalidRequestError,
    UnauthenticatedError,
    UsageError,
)
from trainyard.client.past_runs.event_folders import event_folders, read_folder
from trainyard.client.past_runs.import_request import ImportOptions, batches, request_of
from trainyard.client.past_runs.mlflow_store import read_database, read_folders
from trainyard.client.past_runs.past_run import DAMAGE, PastRun, UnreadRun, legal_names, ordered
from trainyard.client.past_runs.wandb_files import files_of_runs, read_wandb
from trainyard.protocol.past_runs.views import ImportTool, ImportView

MAX_FILES = 10_000
"""Maximum number of files below a path that are examined."""
UNREADABLE = (*DAMAGE, OSError)


@dataclass(frozen=True)
class ImportResult:
    """Outcome of importing one run."""

    run: PastRun
    view: ImportView
    sent: int
    """Number of points sent by this import; 0 if the server already had all points."""


def find_runs(tool: ImportTool, path: Path) -> Iterator[PastRun | UnreadRun]:
    """Yield the runs of a tool at a path; after a damaged run, the search continues.

    Raises:
        UsageError: the path has no run, or the path itself cannot be read.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    number = 0
    finders = {"wandb": _of_wandb, "mlflow": _of_mlflow, "tensorboard": _of_tensorboard}
    try:
        for run in finders[tool](path):
            number += 1
            yield run
    except UNREADABLE as error:
        raise UsageError(f"{path} cannot be imported: {error}") from None
    if not number:
        raise UsageError(f"{path} has no run of {tool}", remedy=EXPECTED[tool])


EXPECTED: dict[ImportTool, str] = {
    "wandb": "Name a file run-*.wandb, a folder of a run, or the folder `wandb` above them.",
    "mlflow": "Name the SQLite file of the store, or the folder `mlruns`, or one above them.",
    "tensorboard": "Name a folder with event files (*tfevents*), or one above such folders.",
}
"""Hints on the expected path, by tool."""


def import_runs(
    yard: ImportCalls, runs: Iterable[PastRun | UnreadRun], options: ImportOptions
) -> Iterator[ImportResult | UnreadRun]:
    """Send runs one after another; yield the outcome of each run.

    If a run cannot be read, or if the server rejects it, the other runs are still sent.

    Raises:
        ApiError: the server rejects every run because of the token or the project.
        ConnectionFailedError: the server cannot be reached.
    """
    for run in runs:
        if isinstance(run, UnreadRun):
            yield run
            continue
        try:
            yield import_run(yard, run, options)
        except (UnauthenticatedError, ForbiddenError):
            raise
        except InvalidRequestError as error:
            if any(problem.pointer == "/project" for problem in error.problem.errors):
                raise
            yield UnreadRun(run.name, _refusal(error))
        except ApiError as error:
            yield UnreadRun(run.name, _refusal(error))
        except UNREADABLE as error:
            yield UnreadRun(run.name, str(error))


def import_run(yard: ImportCalls, run: PastRun, options: ImportOptions) -> ImportResult:
    """Send a run and the points that the server does not have; a repeat continues the import.

    Raises:
        ApiError: the server rejects the run.
    """
    ordered(run)
    names = legal_names(run.series)
    view = yard.start_import(request_of(run, names, options))
    before = view.received
    for batch in batches(run, names, start=before):
        view = yard.add_points(view.job_id, batch)
    return ImportResult(run, view, view.received - before)


def _refusal(error: ApiError) -> str:
    problem = error.problem
    fields = [f"{each.pointer}: {each.detail}" for each in problem.errors[:3]]
    return "; ".join(filter(None, [problem.title, problem.detail, *fields]))


def _of_wandb(path: Path) -> Iterator[PastRun | UnreadRun]:
    if path.is_file():
        yield read_wandb([path])
        return
    found = sorted(path.rglob("run-*.wandb"))[:MAX_FILES]
    for files in files_of_runs(file for file in found if _is_regular(file)):
        yield _read(partial(read_wandb, files), files[0])


def _of_mlflow(path: Path) -> Iterator[PastRun | UnreadRun]:
    if path.is_file():
        yield from read_database(path)
        return
    yield from read_folders(path)
    yield from read_folders(path / "mlruns")
    for store in sorted(path.glob("*.db"))[:MAX_FILES]:
        try:
            yield from read_database(store)
        except UNREADABLE as error:
            yield UnreadRun(str(store), str(error))


def _of_tensorboard(path: Path) -> Iterator[PastRun | UnreadRun]:
    if path.is_file():
        yield read_folder(path.parent, [path], root=path.parent)
        return
    for folder, files in event_folders(path, most=MAX_FILES):
        yield _read(partial(read_folder, folder, files, root=path), folder)


def _read(reader: Callable[[], PastRun], path: Path) -> PastRun | UnreadRun:
    try:
        return reader()
    except UNREADABLE as error:
        return UnreadRun(str(path), str(error))


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
