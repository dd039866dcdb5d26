"""`init`, `schema`, `plan`, `submit` and `import`: from a spec file or a past run to a job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from trainyard.base.problems import Problem
from trainyard.cli.commands.watch import end_code, watch_job
from trainyard.cli.errors import FAILED, explained
from trainyard.cli.options import Follow, Json, Set, SpecFile, Yes
from trainyard.cli.output import emit, has_terminal, note, write_json, write_text
from trainyard.cli.render import job_line
from trainyard.cli.render_plan import draw_plan, warning_lines
from trainyard.client import packing, spec_file
from trainyard.client.errors import UsageError
from trainyard.client.past_runs.import_request import ImportOptions
from trainyard.client.past_runs.past_run import UnreadRun
from trainyard.client.past_runs.runs import ImportResult, find_runs, import_runs
from trainyard.client.sdk import Client
from trainyard.client.template import program_template, spec_template
from trainyard.planner.results import AnyPlan
from trainyard.protocol.past_runs.views import ImportTool
from trainyard.spec.job import DEFAULT_PROJECT

MAX_SHOWN = 10
"""Maximum number of failed runs to name in the last line; an earlier line shows each failure."""


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")] = Path("job.toml"),
    program: Annotated[
        bool, typer.Option("--program", help="For your own program, not the built-in trainer.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented spec file to start from."""
    if file.exists() and not force:
        raise UsageError(
            f"{file} exists", remedy="Name another file, or add --force to overwrite it."
        )
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).strip("-._") or "job"
    text = program_template(name) if program else spec_template(name)
    file.write_text(text, encoding="utf-8")
    write_text(f"Wrote {file}. Next: trainyard plan {file}")


def schema() -> None:
    """Write the JSON Schema of the job spec."""
    with Client() as yard:
        write_json(yard.schema())


def plan(file: SpecFile = None, settings: Set = None, json: Json = False) -> None:
    """Check a spec and show its plan; nothing is stored."""
    with Client() as yard, _document(yard, file, settings) as document:
        emit(yard.plan(document), draw_plan, as_json=json)


def submit(
    file: SpecFile = None,
    settings: Set = None,
    wait: Follow = False,
    key: Annotated[
        str | None,
        typer.Option("--idempotency-key", help="Repeats with the same key submit only one job."),
    ] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Submit a job; show its plan's warnings, and prompt if the job does not fit in memory."""
    if file is None and not settings:
        raise UsageError("submit needs a spec file", remedy=_without_a_file())
    with Client() as yard:
        with _document(yard, file, settings) as document:
            planned = yard.plan(document)
            for line in warning_lines(planned.warnings):
                note(f"Warning: {line}")
            if planned.fits is False and not yes:
                _confirm_misfit(planned)
            job = yard.submit(document, idempotency_key=key)
        if wait:
            note(f"Submitted {job.name} ({job.id}).")
            job = yard.wait(job.id) if json else watch_job(yard, job.id)
        if json:
            write_json(job)
        elif not wait:
            write_text(job_line(job), f"\nNext: trainyard watch {job.id}")
        if wait:
            raise typer.Exit(end_code(job.state))


def _without_a_file() -> str:
    if Path("job.toml").is_file():
        return "trainyard submit job.toml"
    return (
        "`trainyard init` writes one. Without a file, --set submits the default job with some "
        "fields changed, such as --set name=tiny."
    )


def _confirm_misfit(plan: AnyPlan) -> None:
    """On a terminal, let the user confirm the submission of a job that does not fit in memory."""
    question = f"The job does not fit into the memory of {plan.name}. Submit it?"
    if has_terminal() and not typer.confirm(question, err=True):
        raise typer.Exit(FAILED)


def import_(
    tool: Annotated[
        ImportTool,
        typer.Argument(metavar="wandb|mlflow|tensorboard", help="Tool that recorded the runs."),
    ],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A run, or a folder of runs.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the jobs. Default: that of each run.")
    ] = None,
    project: Annotated[
        str, typer.Option("--project", help="Project of the jobs.")
    ] = DEFAULT_PROJECT,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", help="Tag of the jobs. Repeatable.")
    ] = None,
    json: Json = False,
) -> None:
    """Import each run of another tool as a job; a repeated import adds no duplicates."""
    options = ImportOptions(name=name, project=project, tags=tuple(tags or ()))
    views, left_out = [], list[str]()
    with Client() as yard:
        for result in import_runs(yard, find_runs(tool, path), options):
            if isinstance(result, UnreadRun):
                left_out.append(result.name)
                note(f"Error: {result.name} is not imported: {result.reason}")
                continue
            views.append(result.view)
            if not json:
                _write_import(result)
    if json:
        write_json(views)
    if left_out:
        shown = ", ".join(left_out[:MAX_SHOWN]) + (", ..." if left_out[MAX_SHOWN:] else "")
        note(
            f"{len(left_out)} of {len(left_out) + len(views)} runs are not imported: {shown}. "
            "Repeat the command to try them again."
        )
        raise typer.Exit(FAILED)


def _write_import(result: ImportResult) -> None:
    run, view, words = result.run, result.view, f"{result.sent:,} points"
    if not result.sent and view.run.points:
        words = "imported before"
    write_text(f"{run.name}  {view.job_id}  {len(run.series):,} series, {words}")
    for line in run.notes:
        note(f"  {line}")
    for new, old in view.run.renamed.items():
        note(f"  {old!r} becomes {new}")


@contextmanager
def _document(
    yard: Client, file: Path | None, settings: list[str] | None
) -> Iterator[dict[str, Any]]:
    """Pack and upload the code, and yield the spec; explain the server's errors about this spec."""
    assignments = [spec_file.parse_assignment(text) for text in settings or ()]
    document = spec_file.apply(spec_file.read_spec_file(file) if file else {}, assignments)

    def origin(problem: Problem) -> str | None:
        place = spec_file.origin(problem, file=file, assignments=assignments)
        hint = spec_file.legal_instead(problem)
        return "; ".join(part for part in (place, hint) if part) or None

    remedy = "`trainyard schema` and docs/spec.md describe every field."
    with explained(origin, remedy=remedy, title="the spec is not valid"):
        code = packing.code_of(document, folder=file.parent if file else Path())
        if code is not None:
            for line in code.changes:
                note(line)
            note(f"The code: {code.summary}.")
            if missing := code.missing_script(document):
                note(f"Warning: {missing}")
            document = code.in_place(document, pack=yard.upload_pack(code.archive).digest)
        yield document
