"""`metrics`, `logs` and `artifacts`: the output of training."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self

import typer

from trainyard.cli.listings import draw_artifacts, draw_metrics
from trainyard.cli.options import JobReference, Json, Limit
from trainyard.cli.output import at_most, emit, note, write_json, write_json_line
from trainyard.client.errors import InvalidRequestError, NotFoundError
from trainyard.client.references import resolve_job
from trainyard.client.sdk import Client
from trainyard.client.stream import Resync
from trainyard.protocol.event_kinds import EventKind
from trainyard.protocol.rest.event_data import LogStored
from trainyard.protocol.rest.metrics_and_logs import LogLine, LogPage
from trainyard.protocol.states import TERMINAL_JOB_STATES

PAGE_LINES = 1000

Attempt = Annotated[
    int | None, typer.Option("--attempt", min=1, help="Number of the attempt. Default: the newest.")
]


def metrics(
    reference: JobReference,
    names: Annotated[
        str | None,
        typer.Option("--names", metavar="A,B", help="Only these series, such as train/loss."),
    ] = None,
    attempt: Attempt = None,
    points: Annotated[
        int, typer.Option("--max-points", min=1, help="Most buckets of a series (with --json).")
    ] = 1000,
    csv: Annotated[
        bool, typer.Option("--csv", help="Write every point: attempt,step,time,name,value.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the last value and range of each series, and the number of NaN and infinite points."""
    with Client() as yard:
        job_id = resolve_job(yard, reference)
        chosen = tuple(name for name in (names or "").split(",") if name)
        if csv:
            for line in yard.metrics_csv(job_id, names=chosen, attempt=attempt):
                print(line)
            return
        view = yard.metrics(job_id, names=chosen, attempt=attempt, max_points=points)
    emit(view, draw_metrics, as_json=json)


def logs(
    reference: JobReference,
    rank: Annotated[int, typer.Option("--rank", "-r", min=0, help="Global rank.")] = 0,
    attempt: Attempt = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=PAGE_LINES, help="Number of last lines.")
    ] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new lines until the job ends.")
    ] = False,
    search: Annotated[
        str | None,
        typer.Option("--search", "-s", metavar="TEXT", help="Only lines that contain TEXT."),
    ] = None,
    json: Json = False,
) -> None:
    """Show the stdout and stderr of a rank."""
    with Client() as yard:
        job_id = resolve_job(yard, reference)
        if search is not None:
            for line in yard.search_logs(job_id, search, attempt=attempt, rank=rank):
                _write(line, as_json=json)
        elif follow:
            with _Follower(as_json=json) as follower:
                for each in _following(yard, job_id, attempt=attempt, rank=rank, lines=lines):
                    follower.write(each)
        else:
            page = yard.logs(job_id, attempt=attempt, rank=rank, limit=lines)
            write_json(page) if json else _write_page(page)


def _write_page(page: LogPage) -> None:
    for line in page.lines:
        _write(line, as_json=False)
    if page.open_line is not None:
        print(page.open_line, flush=True)
    elif not page.lines:
        note(f"Rank {page.rank} has written nothing; `trainyard show` may show the reason.")
    if page.lines and page.lines[0].number > 0:
        earlier = page.lines[0].number
        note(f"{earlier:,} earlier lines; --lines shows more, --search searches all.")


def artifacts(
    reference: JobReference,
    get: Annotated[
        str | None,
        typer.Option(
            "--get", metavar="NAME", help="Download the newest artifact NAME, or all below NAME/."
        ),
    ] = None,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Folder for --get.", file_okay=False)
    ] = Path(),
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="Only this kind, such as image or model."),
    ] = None,
    limit: Limit = 50,
    json: Json = False,
) -> None:
    """List the images, histograms and files that a job logged, or download some."""
    with Client() as yard:
        job_id = resolve_job(yard, reference)
        if get is None:
            shown = at_most(limit, yard.artifacts(job_id, kind=kind))
            emit(shown, draw_artifacts, as_json=json)
            return
        written = [str(path) for path in yard.download_artifacts(job_id, get, to)]
    if json:
        write_json({"files": written})
    else:
        for path in written:
            print(path)


def _write(line: LogLine, *, as_json: bool) -> None:
    write_json_line(line) if as_json else print(line.text, flush=True)


class _Follower:
    """Writes lines as they arrive; on a terminal, the unfinished line is shown below them."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._shows_open = sys.stdout.isatty() and not as_json
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def write(self, each: LogLine | str) -> None:
        """Write a finished line, or the current text of the unfinished line."""
        self._clear()
        if isinstance(each, LogLine):
            _write(each, as_json=self._as_json)
        elif self._shows_open:
            width = shutil.get_terminal_size().columns - 1
            print(each[:width], end="", flush=True)
            self._is_open = True

    def _clear(self) -> None:
        if self._is_open:
            print("\r\x1b[K", end="", flush=True)
            self._is_open = False


def _following(
    yard: Client, job_id: str, *, attempt: int | None, rank: int, lines: int
) -> Iterator[LogLine | str]:
    """Yield the last lines, then new lines until the job has ended.

    Without `attempt`, later attempts follow. After each output, yield the text of the unfinished
    line.
    """
    shown: int | None = None
    next_line: int | None = None
    for item in yard.stream(job_id=job_id):
        newest, ended = shown, False
        if isinstance(item, Resync):
            job = yard.job(job_id)
            newest, ended = job.attempt or None, job.state in TERMINAL_JOB_STATES
        elif item.kind == EventKind.JOB_ENDED:
            ended = True
        elif isinstance(item.data, LogStored) and item.data.rank == rank:
            newest = item.attempt
        else:
            continue
        newest = attempt or newest
        while shown is not None and newest is not None and shown < newest:
            # The previous attempt may have written more while the stream was interrupted.
            yield from _rest(yard, job_id, attempt=shown, rank=rank, next_line=next_line or 0)
            shown, next_line = shown + 1, 0
            note(f"Attempt {shown}")
        shown = newest
        if shown is not None:
            for line in _rest(
                yard, job_id, attempt=shown, rank=rank, next_line=next_line, lines=lines
            ):
                yield line
                next_line = _after(line, next_line)
        if ended:
            return


def _after(each: LogLine | str, next_line: int | None) -> int | None:
    return each.number + 1 if isinstance(each, LogLine) else next_line


def _rest(
    yard: Client,
    job_id: str,
    *,
    attempt: int,
    rank: int,
    next_line: int | None,
    lines: int = PAGE_LINES,
) -> Iterator[LogLine | str]:
    """Yield lines from `next_line` on, then the unfinished line.

    If `next_line` is None, yield the last `lines` lines instead.
    """
    while True:
        try:
            limit = lines if next_line is None else PAGE_LINES
            page = yard.logs(job_id, attempt=attempt, rank=rank, first_line=next_line, limit=limit)
        except (NotFoundError, InvalidRequestError):  # the rank has written nothing yet
            return
        if not page.lines:
            if page.open_line is not None:
                yield page.open_line
            return
        yield from page.lines
        next_line = page.lines[-1].number + 1
